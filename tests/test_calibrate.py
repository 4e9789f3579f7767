"""The shipped constants come from the named tables, hold on sizes left out of the fit, and are written whole or not."""

import os
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from pipesim.calibration import cases
from pipesim.calibration.box import CalibrationReport, calibration_text, fit_curves, fit_kernels
from pipesim.calibration.cases import experts_op
from pipesim.calibration.curves import CurveFit, curve_from_points, fit_collectives
from pipesim.calibration.doubts import doubts
from pipesim.calibration.fit import KernelFit, fit_kernel, kernel_seconds, select
from pipesim.calibration.solve import errors_of
from pipesim.calibration.write import put, with_fits
from pipesim.cost import CostModel
from pipesim.cost.collectives import curve_seconds
from pipesim.cost.experts import counted_expert_work
from pipesim.deployment import ParallelPlan
from pipesim.errors import ProfileError, UsageError
from pipesim.families import family_of
from pipesim.importers import kernel_tables as kernels
from pipesim.importers.kernel_tables import LatentRow, MoeRow
from pipesim.ops import Experts, LatentDecode
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import ModelProfile
from pipesim.profiles.store import available, find, load_hardware
from pipesim.workload import DecodeStep

pytest.importorskip("aiconfigurator_core")

SYSTEM = "rtx_pro_6000_server"
SHIPPED = "rtx-pro-6000-x8"
SAME = 3e-3
"""Largest difference of logarithms of two times that count as one: constants have four digits, and solvers stop."""


@cache
def kernel_fits() -> dict[str, KernelFit]:
    return {fit.name: fit for fit in fit_kernels(SYSTEM, load_hardware(SHIPPED).gpu)}


@cache
def curve_fits() -> dict[str, CurveFit]:
    return {fit.name: fit for fit in fit_curves(SYSTEM)}


def furthest(fit: KernelFit, box: HardwareProfile, constants: dict[str, float]) -> float:
    """How far times with other constants lie from those of a fit, over the rows of its tables: the largest |log|."""
    times = (kernel_seconds(fit.cases, box.gpu, values) for values in (constants, fit.constants))
    one, other = times
    return float(np.abs(np.log(one / other)).max())


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return Path(shutil.copy(find("hardware", SHIPPED), tmp_path))


@pytest.mark.xdist_group("fits")
class TestShippedConstants:
    """What the founding profile says, made again from the package it names."""

    def test_kernel_constants_come_from_the_tables(self, box: HardwareProfile) -> None:
        # Times are compared, not constants: a class may have some that its rows do not tell from each other.
        for name, fit in kernel_fits().items():
            shipped = box.efficiency[name]
            assert furthest(fit, box, {key: getattr(shipped, key) for key in fit.constants}) < SAME, name
            assert shipped.log_std == pytest.approx(fit.efficiency("").log_std, rel=0.05)

    def test_a_wrong_constant_would_be_seen(self, box: HardwareProfile) -> None:
        for name, fit in kernel_fits().items():
            shipped = {key: getattr(box.efficiency[name], key) for key in fit.constants}
            for key, std in box.efficiency[name].log_std.items():
                wrong = shipped | {key: shipped[key] * (1.03 + std)}
                assert furthest(fit, box, wrong) > SAME, (name, key)

    def test_table_curves_come_from_the_tables(self, box: HardwareProfile) -> None:
        made = 0
        for shipped in box.collectives:
            fit = curve_fits().get(f"{shipped.op} {shipped.ranks} {shipped.launch} {shipped.implementation}")
            if fit is None or not box.sources[shipped.source].text.startswith("aiconfigurator"):
                continue
            made += 1
            assert shipped.shape == fit.curve.shape
            for line, again in zip(shipped.lines, fit.curve.lines, strict=True):
                assert line.latency == pytest.approx(again.latency, rel=1e-3)
                assert line.bandwidth == pytest.approx(again.bandwidth, rel=1e-3)
        assert made >= 6

    def test_the_report_of_a_calibration_fits_a_terminal(self, profile: Path) -> None:
        fits, curves = tuple(kernel_fits().values()), tuple(curve_fits().values())
        report = CalibrationReport(profile, SYSTEM, kernels.PACKAGE, fits, curves, (), "", False)
        text = calibration_text(report)
        assert max(map(len, text.splitlines())) <= 80
        for name in (*kernel_fits(), *curve_fits()):
            assert name in text

    @pytest.mark.parametrize(
        ("name", "bar"),
        [("moe_int4-g32", 0.08), ("moe_int4-g32@vllm", 0.08), ("mla_decode", 0.12), ("mla_decode@vllm", 0.12)],
    )
    def test_sizes_left_out_are_met(self, name: str, bar: float) -> None:
        errors = kernel_fits()[name].errors
        assert errors.held_out <= bar
        assert errors.one_out <= bar

    def test_small_batches_of_gemms_left_out_are_met(self, box: HardwareProfile) -> None:
        rows = kernel_fits()["gemm_bf16"].cases
        assert small_gemm_error(box, np.unique(rows.sizes)[1::2]) <= 0.10

    def test_all_reduce_on_sizes_left_out_is_met(self) -> None:
        for implementation in ("nccl", "custom"):
            errors = [curve_fits()[f"all_reduce {ranks} graph {implementation}"].errors for ranks in (2, 4, 8)]
            assert np.mean([error.held_out for error in errors]) <= 0.06

    def test_a_long_context_of_one_request_is_met_under_vllm(self) -> None:
        fit = kernel_fits()["mla_decode@vllm"]
        longest = fit.errors.bands[-1]
        assert longest.smallest == 32768
        assert abs(longest.bias) < 0.05

    @pytest.mark.parametrize("storage", ["fp8", "nvfp4", "bf16"])
    def test_no_row_of_experts_reads_faster_than_the_memorys_clock(self, storage: str, box: HardwareProfile) -> None:
        read_once, *_ = cases.expert_cases(SYSTEM, box.gpu, storage, "sglang")
        assert read_once.form == {"weight_reread": 0.0}
        assert np.all(read_once.bytes <= box.gpu.memory_bandwidth * box.gpu.most_memory * read_once.seconds)
        assert kernel_fits()[f"moe_{storage}"].constants["memory"] < box.gpu.most_memory

    def test_a_calibrated_profile_is_calibrated(self, profile: Path) -> None:
        fits = [*kernel_fits().values(), *curve_fits().values()]
        put(profile, with_fits(profile, fits))
        assert put(profile, with_fits(profile, fits), dry_run=True) == ""


BOXES = {
    "rtx_pro_6000_server": SHIPPED,
    "h100_sxm": "h100-sxm-x8",
    "h200_sxm": "h200-sxm-x8",
    "b200_sxm": "b200-sxm-x8",
    "l40s": "l40s-x8",
    "a100_sxm": "a100-sxm-x8",
}
OTHER_KERNELS = {
    "h100_sxm": {"moe_mxfp4": "SGLang's Triton kernel dequantises; vLLM's is OpenAI's own for MXFP4"},
    "l40s": {"moe_mxfp4": "SGLang's Triton kernel dequantises; vLLM's is Marlin"},
    "b200_sxm": {
        "moe_int4-g32@vllm": "Marlin computes with the instructions of Ampere, SGLang with TensorRT-LLM's kernel"
    },
}
"""Classes that are seen to differ, and why: the tables name the kernels."""


@pytest.mark.xdist_group("fits")
@pytest.mark.parametrize("system", BOXES)
def test_no_class_implies_rates_that_such_kernels_do_not_reach(system: str) -> None:
    box = load_hardware(BOXES[system])
    fits = kernel_fits() if system == SYSTEM else {fit.name: fit for fit in fit_kernels(system, box.gpu)}
    found = doubts(tuple(fits.values()), box.gpu)
    assert {text.partition(" takes ")[0].partition(":")[0] for text in found} == OTHER_KERNELS.get(system, {}).keys()
    for name, fit in fits.items():
        if name != "mla_absorb":  # its rows are warm, and its memory rate is that of cold products
            shipped = {key: getattr(box.efficiency[name], key) for key in fit.constants}
            assert furthest(fit, box, shipped) < SAME, name
        assert box.efficiency[name].memory <= box.gpu.most_memory


def test_a_kernel_priced_in_another_form_than_it_was_measured_in_is_doubted(box: HardwareProfile) -> None:
    absorbed = kernel_fits()["mla_prefill_absorbed"].cases
    as_expanded = replace(absorbed, kernel="mla_prefill", flops=absorbed.flops * 320 / 1088)
    wrong, beside = fit_kernel([as_expanded], box.gpu), kernel_fits()["mla_prefill@vllm"]
    assert any("mla_prefill takes" in text for text in doubts((wrong, beside), box.gpu))
    twice = replace(absorbed, flops=absorbed.flops * 5)
    assert any("of the peak" in text for text in doubts((fit_kernel([twice], box.gpu),), box.gpu))


@pytest.mark.parametrize("name", sorted(available("hardware")))
def test_no_box_reads_faster_than_the_clock_of_its_memory(name: str) -> None:
    box = load_hardware(name)
    assert max(entry.memory for entry in box.efficiency.values()) <= box.gpu.most_memory


def small_gemm_error(box: HardwareProfile, left_out: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Mean absolute error at m <= 512 over sizes that the fit has not seen."""
    rows = kernel_fits()["gemm_bf16"].cases
    unseen = np.isin(rows.sizes, left_out)
    seen = fit_kernel([select(rows, ~unseen)], box.gpu)
    tested = select(rows, unseen & (rows.sizes <= 512))
    return float(np.abs(kernel_seconds(tested, box.gpu, seen.constants) / tested.seconds - 1).mean())


def test_all_reduce_of_a_pcie_box_without_peer_access_is_met_on_sizes_left_out() -> None:
    table = kernels.find_table("l40s", "comm", "custom_allreduce", ["sglang"])
    assert table is not None
    rows = [row for row in kernels.read_custom_all_reduce(table.path) if row.launch == "graph"]
    fits = fit_collectives(table, rows, "custom")
    assert [fit.curve.ranks for fit in fits] == [2, 4, 8]
    assert np.mean([fit.errors.held_out for fit in fits]) <= 0.09


@pytest.mark.parametrize(("heads", "requests", "kv"), [(8, 1, 65536), (16, 32, 4096), (64, 256, 512)])
@pytest.mark.parametrize("stack", ["", "vllm"])
def test_what_is_fitted_is_what_is_priced(box: HardwareProfile, heads: int, requests: int, kv: int, stack: str) -> None:
    name = f"mla_decode@{stack}" if stack else "mla_decode"
    entry = box.efficiency[name]
    form = {key: getattr(entry, key) for key in cases.SPLIT_RULES[0]}
    row = LatentRow(heads, requests, 1, kv, 2.0, 1.0)
    table = kernels.find_table(SYSTEM, "mla", "generation_mla", ["sglang"])
    assert table is not None
    case = cases.latent_cases(name, table, "", [row], box.gpu, form)
    again = kernel_seconds(case, box.gpu, dict(entry))
    priced = CostModel(box, "graph", stack=stack).price(LatentDecode(requests, kv, heads, 512, 64, 2.0))
    assert again[0] == pytest.approx(priced.seconds, rel=1e-12)


@pytest.mark.parametrize("tp", [1, 8])
def test_a_measured_expert_layer_is_the_models_own(kimi: ModelProfile, tp: int) -> None:
    ops = family_of(kimi).operations(kimi, "expert_layer", DecodeStep(16, 1000, 16, False), ParallelPlan(tp))
    own = next(op for op in ops if isinstance(op, Experts))
    measured = experts_op(MoeRow(16, 7168, 2048, 8, 384, tp, None, 1.0), "int4-g32")
    for name in ("weights_per_expert", "bytes_per_weight", "bytes_per_token", "tokens", "experts", "top_k"):
        assert getattr(measured, name) == pytest.approx(getattr(own, name))


@pytest.mark.parametrize("tokens", [1, 16, 48, 512])
@pytest.mark.parametrize("power", [None, 1.01, 1.2])
def test_the_collector_deals_every_token_to_its_experts(tokens: int, power: float | None) -> None:
    row = MoeRow(tokens, 7168, 2048, 8, 384, 1, power, 1.0)
    dealt = cases.collector_rows(row)
    assert sum(dealt) == 8 * tokens
    assert min(dealt) >= 0
    if power is None:
        assert np.count_nonzero(dealt) == min(384, 8 * tokens)
    work = counted_expert_work(experts_op(row, "int4-g32"), dealt, 0.0)
    assert work.bytes == pytest.approx(np.count_nonzero(dealt) * 3 * 7168 * 2048 * 0.5625)


def test_a_curve_of_points_goes_through_them() -> None:
    points = [(size, min(10e-6 + size / 10e9, 40e-6 + size / 40e9)) for size in 2.0 ** np.arange(10, 26)]
    curve = curve_from_points("all_reduce", 4, "graph", "nccl", points, "measured-here")
    assert curve.source == "measured-here"
    assert curve.shape == "min"
    for size, seconds in points:
        assert curve_seconds(curve, size) == pytest.approx(seconds, rel=0.01)


def test_one_disturbed_point_moves_no_curve() -> None:
    points = [(size, 10e-6 + size / 10e9) for size in 2.0 ** np.arange(8, 26)]
    disturbed = [*points[:2], (points[2][0], 20 * points[2][1]), *points[3:]]
    curve = curve_from_points("all_reduce", 4, "graph", "nccl", disturbed, "here")
    assert curve_seconds(curve, 2.0**10) == pytest.approx(10e-6 + 2.0**10 / 10e9, rel=0.02)


@pytest.mark.parametrize("points", [[], [(1.0, 1.0)] * 9, [(1.0, 1.0), (2.0, 1.0), (3.0, 0.0), (4.0, 1.0)]])
def test_too_few_points_are_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(UsageError, match="4 different sizes"):
        curve_from_points("all_reduce", 2, "graph", "nccl", points, "here")


def test_errors_tell_slow_from_fast_by_band() -> None:
    sizes, seconds = np.array([1.0, 2.0, 4.0, 8.0]), np.ones(4)
    predicted = np.array([1.1, 0.9, 1.2, 1.2])
    errors = errors_of(sizes, seconds, predicted, (1, 4), lambda kept, left: np.full(left.sum(), 1.5))
    assert errors.mean == pytest.approx(0.15)
    assert [(band.rows, round(band.bias, 9)) for band in errors.bands] == [(2, 0.0), (2, 0.2)]
    assert (errors.held_out, errors.one_out) == (0.5, 0.5)


class TestWriting:
    """One small fit is enough to see how profiles are written."""

    @pytest.fixture
    def fit(self, box: HardwareProfile) -> KernelFit:
        return fit_kernel(cases.prefill_cases(SYSTEM), box.gpu)

    def test_comments_and_all_other_entries_stay(self, profile: Path, fit: KernelFit) -> None:
        before = profile.read_text(encoding="utf-8")
        changed = before.replace(
            "[efficiency.mla_prefill_absorbed]\n", "[efficiency.mla_prefill_absorbed]\n# mine\n"
        ).replace(f"compute = {fit.constants['compute']}", "compute = 0.5 # guessed")
        assert changed.count("# mine") == changed.count("# guessed") == 1
        profile.write_text(changed, encoding="utf-8")
        put(profile, with_fits(profile, [fit]))
        after = profile.read_text(encoding="utf-8")
        comments = [line for line in changed.splitlines() if line.startswith("#")]
        assert [line for line in after.splitlines() if line.startswith("#")] == comments
        assert load_hardware(str(profile)).efficiency["mla_prefill_absorbed"].compute == fit.constants["compute"]
        assert "compute = 0.5 " not in after

    def test_sources_name_package_version_table_and_errors(self, profile: Path, fit: KernelFit) -> None:
        put(profile, with_fits(profile, [fit]))
        loaded = load_hardware(str(profile))
        text = loaded.sources[loaded.efficiency["mla_prefill_absorbed"].source].text
        for part in (kernels.PACKAGE, kernels.package_version(), SYSTEM, "mla", fit.cases.table.version, "left out"):
            assert part in text

    def test_the_difference_writes_nothing(self, profile: Path, fit: KernelFit) -> None:
        text = profile.read_text(encoding="utf-8").replace(f"compute = {fit.constants['compute']}", "compute = 0.5")
        profile.write_text(text, encoding="utf-8")
        changes = put(profile, with_fits(profile, [fit]), dry_run=True)
        assert "-compute = 0.5" in changes
        assert f"+compute = {fit.constants['compute']}" in changes
        assert profile.read_text(encoding="utf-8") == text

    def test_a_failure_midway_leaves_the_old_file(
        self, profile: Path, fit: KernelFit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = profile.read_text(encoding="utf-8").replace(f"compute = {fit.constants['compute']}", "compute = 0.5")
        profile.write_text(text, encoding="utf-8")

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(ProfileError, match="No space left"):
            put(profile, with_fits(profile, [fit]))
        assert profile.read_text(encoding="utf-8") == text
        assert [path.name for path in profile.parent.iterdir()] == [profile.name]

    def test_constants_that_no_profile_may_have_are_not_written(self, profile: Path, fit: KernelFit) -> None:
        text = profile.read_text(encoding="utf-8")
        fit.constants["compute"] = 2.0
        with pytest.raises(ProfileError, match=r"efficiency\.mla_prefill_absorbed\.compute"):
            put(profile, with_fits(profile, [fit]))
        assert profile.read_text(encoding="utf-8") == text

    @pytest.mark.parametrize("text", ["", "schema_version = 1\nname = ", "schema_version = 9"])
    def test_a_broken_profile_is_refused(self, tmp_path: Path, fit: KernelFit, text: str) -> None:
        path = tmp_path / "broken.toml"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ProfileError, match=r"broken\.toml"):
            put(path, with_fits(path, [fit]))


@pytest.mark.parametrize("name", ["h200-sxm-x8", "h100-sxm-x8", "b200-sxm-x8", "a100-sxm-x8", "l40s-x8"])
def test_every_shipped_box_of_the_tables_prices_a_decode_step(name: str, kimi: ModelProfile) -> None:
    hardware = load_hardware(name)
    model = CostModel(hardware, "graph")
    for op in family_of(kimi).operations(kimi, "expert_layer", DecodeStep(16, 1000, 16, True), ParallelPlan(8)):
        assert 0 < model.price(op).seconds < 5e-3 or op.category == "dense"
