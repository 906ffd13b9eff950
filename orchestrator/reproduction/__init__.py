"""The tables of the paper, reproduced: what each takes, its sweeps, and its numbers beside ours."""
