"""pipesim: which TP×PP split should serve this language model on these GPUs, and why."""
