"""What people paste of their box: the matrix of nvidia-smi, bandwidths between GPUs, nccl-tests."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import ProfileError
from pipesim.importers.p2p import MeasuredLinks, P2PReport, links_of, read_p2p
from pipesim.importers.topo import BoxTopology, read_topo
from pipesim.profiles.store import load_hardware
from tests.conftest import BOX, ROOT, Ran, RunCli

DATA = ROOT / "tests" / "data"
FOUR = (0, 1, 2, 3), (4, 5, 6, 7)
PAIRS = (0, 1), (2, 3), (4, 5), (6, 7)
DGX = (DATA / "topo_dgx.txt").read_text(encoding="utf-8")
P2P = (DATA / "p2p_four.txt").read_text(encoding="utf-8")

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(content: str | bytes) -> Path:
        path = tmp_path / "pasted.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return to_file


def matrix(word: Callable[[int, int], str], gpus: int = 8, tail: Callable[[int], str] = lambda gpu: "") -> str:
    """A matrix as nvidia-smi prints it, from the word between two GPUs."""
    lines = ["".join(f"\tGPU{gpu}" for gpu in range(gpus)) + ("\tCPU Affinity\tNUMA Affinity" if tail(0) else "")]
    for gpu in range(gpus):
        words = "".join(f"\t{' X ' if gpu == other else word(gpu, other)}" for other in range(gpus))
        lines.append(f"GPU{gpu}{words}{tail(gpu)}")
    return "\n".join(lines) + "\n"


def by_size(*words: tuple[int, str]) -> Callable[[int, int], str]:
    """The first word whose blocks of neighbours hold both GPUs."""
    return lambda a, b: next(word for size, word in words if a // size == b // size)


# The four layouts of 8-GPU boxes that the rtx6kpro wiki (hardware/topology.md and two of its hosts) prints.
ROOT_AND_LEAF = by_size((2, "PIX"), (4, "PXB"), (8, "NODE"))
TWO_SOCKETS_FOUR_SWITCHES = by_size((2, "PIX"), (4, "NODE"), (8, "SYS"))
TWO_SOCKETS_DIRECT = by_size((4, "PHB"), (8, "SYS"))
TWO_SWITCHES = by_size((4, "PIX"), (8, "PHB"))
HAND_DRAWN = {
    "one socket, two root switches with two leaves each": (
        ROOT_AND_LEAF,
        "switch",
        (tuple(range(8)),),
        (*FOUR, *PAIRS),
    ),
    "two sockets with two switches each": (TWO_SOCKETS_FOUR_SWITCHES, "socket", FOUR, PAIRS),
    "two sockets, GPUs direct": (TWO_SOCKETS_DIRECT, "socket", FOUR, ()),
    "one socket, two switches of four": (TWO_SWITCHES, "switch", (tuple(range(8)),), FOUR),
}


@pytest.mark.parametrize("layout", HAND_DRAWN)
def test_a_matrix_gives_the_tree_that_a_careful_reader_would_draw(write: Write, layout: str) -> None:
    word, kind, sockets, switches = HAND_DRAWN[layout]
    found = read_topo(write(matrix(word)))
    assert (found.gpus, found.kind, found.sockets, found.switches, found.nvlink) == (8, kind, sockets, switches, ())
    assert found.groups == FOUR


DRESSES: dict[str, Callable[[str], str]] = {
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "BOM": lambda text: "\ufeff" + text,
    "colours": lambda text: "\x1b[4m" + text.replace("GPU3", "\x1b[1;32mGPU3\x1b[0m", 1),
    "spaces": lambda text: text.expandtabs(8),
    "a prompt before and after": lambda text: f"root@box:~# nvidia-smi topo -m\n{text}root@box:~# ",
    "nvidia-smi's table before": lambda text: "| 0  RTX PRO 6000  On | 00000000:01:00.0 Off |\n" + text,
    "a legend": lambda text: text + DGX[DGX.index("Legend:") :],
    "cards of a network": lambda text: (
        "\n".join(
            f"{line}\t{'NIC0' if line.startswith(chr(9)) else 'SYS'}" if line else "" for line in text.split("\n")
        )
        + "NIC0"
        + "\tSYS" * 8
        + "\t X \n"
    ),
}


@pytest.mark.parametrize("dress", DRESSES)
def test_what_surrounds_a_matrix_does_not_matter(write: Write, dress: str) -> None:
    plain = matrix(ROOT_AND_LEAF)
    assert read_topo(write(DRESSES[dress](plain))) == read_topo(write(plain))


def test_cores_and_numa_columns_are_no_devices(write: Write) -> None:
    dressed = matrix(TWO_SOCKETS_DIRECT, tail=lambda gpu: f"\t{gpu // 4 * 32}-{gpu // 4 * 32 + 31}\t{gpu // 4}\t\tN/A")
    assert read_topo(write(dressed)) == read_topo(write(matrix(TWO_SOCKETS_DIRECT)))


def test_nvlink_hides_the_way_over_pcie_and_the_numa_column_tells_the_sockets() -> None:
    found = read_topo(DATA / "topo_dgx.txt")
    assert (found.kind, found.groups, found.sockets, found.switches) == (
        "nvlink",
        ((0, 1, 2, 3),),
        ((0, 1), (2, 3)),
        (),
    )


def test_bridged_pairs_are_groups_of_two(write: Write) -> None:
    found = read_topo(write(matrix(by_size((2, "NV12"), (4, "NODE"), (8, "SYS")))))
    assert (found.kind, found.groups, found.sockets) == ("nvlink", PAIRS, FOUR)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.randoms(use_true_random=False))
def test_any_tree_in_any_order_of_gpus_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, sockets: int, switches: int, below: int, random: object
) -> None:
    gpus = sockets * switches * below
    order = list(range(gpus))
    random.shuffle(order)  # type: ignore[attr-defined]
    word = by_size((below, "PIX"), (switches * below, "NODE"), (gpus, "SYS"))
    path = tmp_path_factory.mktemp("topo") / "topo.txt"
    path.write_text(matrix(lambda a, b: word(order[a], order[b]), gpus), encoding="utf-8")

    def parts(size: int) -> set[tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for gpu in range(gpus):
            found.setdefault(order[gpu] // size, []).append(gpu)
        return {tuple(part) for part in found.values()}

    found = read_topo(path)
    assert set(found.sockets) == parts(switches * below)
    assert set(found.switches) == (parts(below) if below > 1 else set())


SEVERAL = f"## A: first box\n{matrix(TWO_SWITCHES)}## B: second box\n{matrix(TWO_SOCKETS_DIRECT)}"


@pytest.mark.parametrize(
    ("section", "title"),
    [("A", "A: first box"), ("b", "B: second box"), ("2", "B: second box"), ("second", "B: second box")],
)
def test_one_of_several_boxes_is_chosen_by_letter_place_or_title(write: Write, section: str, title: str) -> None:
    assert read_topo(write(SEVERAL), section).title == title


def refusal(read: Callable[[Path], object], path: Path) -> str:
    with pytest.raises(ProfileError) as refused:
        read(path)
    assert str(path) in str(refused.value)
    return str(refused.value)


def test_several_boxes_and_no_choice_are_listed(write: Write) -> None:
    message = refusal(read_topo, write(SEVERAL))
    assert "first box" in message
    assert "second box" in message
    assert "--section" in message
    assert "one of A" in refusal(lambda path: read_topo(path, "C"), write(SEVERAL))


def without_line(text: str, start: str) -> str:
    return "".join(line for line in text.splitlines(True) if not line.startswith(start))


PLAIN = matrix(ROOT_AND_LEAF)
ROW2 = next(line for line in PLAIN.splitlines(True) if line.startswith("GPU2"))
BROKEN_TOPO: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "an empty file"),
    "blank": ("\n \n", "an empty file"),
    "binary": (b"\x7fELF\x02\xff\xfe\x00", "a binary file"),
    "zero bytes": (b"GPU0\0GPU1", "a binary file"),
    "the legend alone": (DGX[DGX.index("Legend:") :], "a legend without a matrix"),
    "another tool": ("hello\nworld\n", "no heading with GPU0"),
    "the heading alone": (PLAIN.splitlines(True)[0], "GPU0: a column without a row"),
    "a missing row": (without_line(PLAIN, "GPU2"), "GPU2: a column without a row"),
    "a missing column": (PLAIN.replace(ROW2, ROW2.rpartition("\t")[0] + "\n"), "line 4: GPU2: 7 column(s)"),
    "a missing column before the cores": (
        matrix(TWO_SWITCHES, tail=lambda gpu: "\t0-31\t0").replace("PHB\t0-31", "0-31"),
        "GPU0: 7 column(s)",
    ),
    "cut within a row": (PLAIN[: PLAIN.rindex("GPU5\t") + 12], 'line 7: GPU5: "NO" towards GPU1'),
    "no heading": (PLAIN.partition("\n")[2], "line 1: GPU0: a row without a heading"),
    "an unknown word": (PLAIN.replace(ROW2, ROW2.replace("NODE", "PIG", 1)), 'line 4: GPU2: "PIG" towards GPU4'),
    "another word back": (
        PLAIN.replace(ROW2, ROW2.replace("NODE", "SYS", 1)),
        "SYS towards GPU4, which has NODE was given, the same both ways",
    ),
    "two selves": (PLAIN.replace(ROW2, ROW2.replace("NODE", " X ", 1)), "X towards"),
    "a switch shared by half": (
        matrix(lambda a, b: "PIX" if {a, b} in ({0, 1}, {1, 2}) else "SYS", 3),
        "with which it shares a switch",
    ),
    "a row twice": (PLAIN.replace(ROW2, ROW2 + ROW2), "line 5: GPU2: a second row"),
    "a GPU that has no column": (PLAIN + "GPU9\tX\n", "GPU9: a row of no column"),
    "columns from GPU1": (without_line(PLAIN, "GPU0").replace("\tGPU0", "", 1), "GPU0 to GPU6 in order"),
}


@pytest.mark.parametrize("name", BROKEN_TOPO)
def test_a_matrix_that_is_none_is_refused_at_its_row(write: Write, name: str) -> None:
    content, why = BROKEN_TOPO[name]
    assert why in refusal(read_topo, write(content))


# --- bandwidths


def read_links(path: Path) -> MeasuredLinks:
    return links_of(read_p2p(path))


def test_the_tool_of_nvidias_samples_gives_two_levels_staging_and_latencies() -> None:
    found = read_links(DATA / "p2p_four.txt")
    assert (found.gpus, found.peer_access, found.groups) == (4, True, ((0, 1), (2, 3)))
    assert found.same_group_bandwidth == pytest.approx(25.65e9)
    assert found.cross_group_bandwidth == pytest.approx(19.35e9)
    assert found.staged_bandwidth == pytest.approx(11.45e9)
    assert found.staged_latency == pytest.approx(13.35e-6)
    assert found.latency is not None
    assert found.latency < 1e-6, "of the GPU, not of the CPU's table below it"


@pytest.mark.parametrize("dress", ["CRLF", "BOM", "colours", "a prompt before and after"])
def test_what_surrounds_bandwidths_does_not_matter(write: Write, dress: str) -> None:
    assert read_links(write(DRESSES[dress](P2P))) == read_links(DATA / "p2p_four.txt")


def test_a_page_of_a_wiki_with_row_names_and_dashes(write: Write) -> None:
    text = (
        "## unidirectional GB/s\n Dst→   GPU0   GPU1   GPU2\nGPU0:    —     53.9   53.8\nGPU1:  53.8     —     53.4\n"
    )
    found = read_links(write(text + "GPU2:  53.9   53.7     —\n"))
    assert (found.gpus, found.peer_access, found.groups) == (3, None, ())
    assert found.same_group_bandwidth == found.cross_group_bandwidth == pytest.approx(53.8e9)


def test_the_bidirectional_matrix_alone_stands_in_with_its_half(write: Write) -> None:
    found = read_links(
        write("## bidirectional GB/s (P2P on)\n   D\\D     0      1\n     0    —    104\n     1   104    —\n")
    )
    assert found.same_group_bandwidth == 52e9
    assert "half of the bidirectional" in found.notes[0]


def test_simple_p2p_in_words(write: Write) -> None:
    text = """Checking GPU(s) for support of peer to peer memory access...
> Peer access from NVIDIA A (GPU0) -> NVIDIA A (GPU1) : Yes
> Peer access from NVIDIA A (GPU1) -> NVIDIA A (GPU0) : Yes
Enabling peer access between GPU0 and GPU1...
cudaMemcpyPeer / cudaMemcpy between GPU0 and GPU1: 25.07GB/s
"""
    found = read_links(write(text))
    assert (found.peer_access, found.same_group_bandwidth) == (True, 25.07e9)
    assert read_links(write(text.replace("Yes", "No").rpartition("cuda")[0])).peer_access is False


def test_without_peer_access_the_bandwidth_is_that_of_staging(write: Write) -> None:
    off = P2P.replace("CAN ", "CANNOT ").replace("\t      1     1     1     1", "\t      0     0     0     0")
    found = read_links(write(off))
    assert (found.peer_access, found.same_group_bandwidth, found.latency) == (False, None, None)
    assert found.staged_bandwidth == pytest.approx(11.45e9)


@given(st.integers(1, 3), st.integers(2, 4), st.floats(20, 60), st.floats(0.3, 0.8), st.randoms(use_true_random=False))
def test_groups_come_back_whatever_the_order_of_gpus(
    count: int, size: int, fast: float, share: float, random: object
) -> None:
    gpus = count * size
    order = list(range(gpus))
    random.shuffle(order)  # type: ignore[attr-defined]
    speed = [
        [(fast if order[a] // size == order[b] // size else fast * share) * (0.98 + 0.04 * ((3 * a + b) % 5) / 4) * 1e9
         for b in range(gpus)] for a in range(gpus)
    ]  # fmt: skip
    found = links_of(P2PReport({("unidirectional", True): tuple(map(tuple, speed))}))
    same, cross = found.same_group_bandwidth, found.cross_group_bandwidth
    assert same is not None
    assert cross is not None
    assert same == pytest.approx(fast * 1e9, rel=0.03)
    if count > 1:
        assert len(found.groups) == count
        assert all(len({order[gpu] // size for gpu in group}) == 1 for group in found.groups)
        assert cross == pytest.approx(fast * share * 1e9, rel=0.03)
    else:
        assert (found.groups, cross) == ((), same)


UNIDIRECTIONAL = P2P[P2P.index("Unidirectional P2P=Enabled") : P2P.index("Bidirectional P2P=Disabled")]
ROW1 = UNIDIRECTIONAL.splitlines(True)[3]
BROKEN_P2P: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "an empty file"),
    "binary": (b"\xff\x00\x80", "binary"),
    "another tool": ("hello\n", "no matrix and no word"),
    "a legend": (DGX[DGX.index("Legend:") :], "no matrix and no word"),
    "a missing column": (UNIDIRECTIONAL.replace(ROW1, ROW1.rstrip().rpartition(" ")[0] + "\n"), "line 4: GPU1: 3 col"),
    "a missing row": (UNIDIRECTIONAL.replace(ROW1, ""), "line 4: GPU1: 1 of 4 rows"),
    "cut off": (UNIDIRECTIONAL[:-60], "GPU2"),
    "no number": (UNIDIRECTIONAL.replace(ROW1, ROW1.replace("25.60", "fast")), 'line 4: GPU1: "fast" towards GPU0'),
    "no time at all": (UNIDIRECTIONAL.replace(ROW1, ROW1.replace("25.60", " 0.00")), "a number above 0"),
    "one GPU": ("Unidirectional Bandwidth\n D\\D 0\n 0 400.1\n", "matrices of one GPU"),
    "two boxes": (UNIDIRECTIONAL + "Bidirectional\n D\\D 0 1\n 0 9 9\n 1 9 9\n", "matrices of 2 and 4 GPUs"),
}


@pytest.mark.parametrize("name", BROKEN_P2P)
def test_bandwidths_that_are_none_are_refused_at_their_row(write: Write, name: str) -> None:
    content, why = BROKEN_P2P[name]
    assert why in refusal(read_p2p, write(content))


# --- the commands


def imported(run_cli: RunCli, path: Path, *arguments: object) -> Ran:
    ran = run_cli("import", *arguments, "-o", path)
    assert (ran.code, ran.out) == (0, ""), ran.err
    return ran


def test_topology_then_bandwidths_then_curves_make_one_box(run_cli: RunCli, tmp_path: Path, write: Write) -> None:
    first, second, third = (tmp_path / name for name in ("a.toml", "b.toml", "c.toml"))
    topo = write(matrix(by_size((2, "PIX"), (4, "PHB")), gpus=4))
    imported(run_cli, first, "topo", topo, "--base", "rtx-4090-x4", "--uplink", "20 GB/s", "--name", "mine")
    imported(run_cli, second, "p2p", DATA / "p2p_four.txt", "--base", first)
    imported(run_cli, third, "nccl-tests", DATA / "nccl_all_gather_4.txt", "--base", second)
    box = load_hardware(str(third))
    assert (box.gpus, box.gpu, box.peer_links.peer_access) == (4, load_hardware("rtx-4090-x4").gpu, True)
    assert [(switch.gpus, switch.uplink) for switch in box.topology.switches] == [((0, 1), 20e9), ((2, 3), 20e9)]
    assert box.peer_links.same_group_bandwidth == pytest.approx(25.65e9)
    assert box.peer_links.launch == load_hardware("rtx-4090-x4").peer_links.launch
    curve = next(c for c in box.collectives if (c.op, c.ranks, c.launch) == ("all_gather", 4, "graph"))
    assert "nccl_all_gather_4.txt" in box.sources[curve.source].text
    assert load_hardware(str(first)).name == "mine"


def test_json_is_one_object_with_the_document(run_cli: RunCli, write: Write) -> None:
    ran = run_cli("import", "topo", write(matrix(TWO_SWITCHES)), "--json")
    document = json.loads(ran.out)
    assert (document["schema_version"], document["kind"]) == (1, "hardware")
    assert document["hardware"]["extends"] == BOX.name
    assert document["hardware"]["topology"]["groups"] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_printed_profile_is_one_that_predicts(run_cli: RunCli, tmp_path: Path, write: Write) -> None:
    path = tmp_path / "own.toml"
    path.write_text(run_cli("import", "topo", write(matrix(TWO_SWITCHES)), "--uplink", "8 GB/s").out, encoding="utf-8")
    run = ("predict", "--tp", 4, "--pp", 2, "--random-range-ratio", 0, "--num-prompts", 32, "--seeds", 1, "--json")
    shared, direct = (run_cli(*run, "--hardware", box).json for box in (path, BOX.name))
    assert shared["metrics"]["step_time_s"] > direct["metrics"]["step_time_s"]


@pytest.mark.parametrize("command", ["topo", "p2p", "nccl-tests"])
@pytest.mark.parametrize("content", ["", "hello", DGX[DGX.index("Legend:") :], "\x1b[32m\x1b[0m", "\0\1\2"])
def test_a_bad_file_is_one_message_and_nothing_is_written(
    run_cli: RunCli, tmp_path: Path, write: Write, command: str, content: str
) -> None:
    out = tmp_path / "own.toml"
    ran = run_cli("import", command, write(content), "-o", out)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert "pasted.txt" in ran.err
    assert ran.err.count("\n") == 1
    assert not out.exists()


def test_a_log_of_nccl_tests_cut_in_the_middle_is_refused_at_its_line(run_cli: RunCli, write: Write) -> None:
    text = (DATA / "nccl_two_tests_8.txt").read_text(encoding="utf-8")
    ran = run_cli("import", "nccl-tests", write(text[: len(text) // 3]))
    assert ran.code == 2
    assert "pasted.txt: line " in ran.err


def test_json_of_nccl_tests_and_a_test_that_no_price_needs(run_cli: RunCli) -> None:
    ran = run_cli("import", "nccl-tests", DATA / "nccl_two_tests_8.txt", "--json")
    assert "sendrecv" in ran.err
    curves = ran.json["hardware"]["collectives"]
    assert [(curve["ranks"], curve["launch"]) for curve in curves] == [(8, "graph"), (8, "eager")]


def test_nvlink_over_a_base_of_pcie_is_pointed_out(run_cli: RunCli) -> None:
    ran = run_cli("import", "topo", DATA / "topo_dgx.txt")
    assert ran.code == 0
    assert "has NVLink" in ran.err
    assert run_cli("import", "topo", DATA / "topo_dgx.txt", "--base", "h100-x4").err == ""


def test_a_topology_is_what_its_matrix_says_without_the_words_of_a_shell(write: Write) -> None:
    assert isinstance(read_topo(write(matrix(TWO_SWITCHES, 4))), BoxTopology)


NAMED = """Device: 0, NVIDIA GeForce RTX 4090, pciBusID: 1, pciDeviceID: 0, pciDomainID:0
Device: 1, NVIDIA GeForce RTX 4090, pciBusID: 2, pciDeviceID: 0, pciDomainID:0
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 906.46  17.31
     1  17.32 921.39
"""


def test_the_base_is_the_box_of_the_gpu_that_the_file_names(run_cli: RunCli, tmp_path: Path) -> None:
    path = tmp_path / "p2p.txt"
    path.write_text(NAMED, encoding="utf-8")
    ran = run_cli("import", "p2p", path, "--json")
    assert ran.json["hardware"]["extends"] == "rtx-4090-x8"
    assert "rtx-4090-x8" in ran.err
    assert "names the GPU of rtx-4090-x8" in run_cli("import", "p2p", path, "--base", "h100-sxm-x8", "--json").err
    path.write_text(NAMED.replace("1, NVIDIA GeForce RTX 4090", "1, NVIDIA L40S"), encoding="utf-8")
    assert "one of rtx-4090-x8, l40s-x8" in run_cli("import", "p2p", path).err


def test_colour_codes_whose_escape_was_lost_in_pasting_are_taken_out(run_cli: RunCli, tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text("\t[4mGPU0\tGPU1\tCPU Affinity[0m\nGPU0\t X \tPHB\t0-31\nGPU1\tPHB\t X \t0-31\n", encoding="utf-8")
    assert run_cli("import", "topo", path, "--json").json["hardware"]["gpus"] == 2
