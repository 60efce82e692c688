"""Goodput against load, as a picture. Knows the report and matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LOOKS = {
    "jubako": ("Jubako", "#0b6e4f", "o", "-"),
    "vllm": ("vLLM's own server", "#b3541e", "s", "--"),
}
"""Label, colour, marker, line: told apart without colour too."""


def draw(report: dict[str, Any], file: Path) -> None:
    """Write the plot; the same report gives the same bytes with the same matplotlib."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    slo = report["plan"]["slo"]
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(6.4, 3.8), dpi=120, layout="constrained")
        axes = figure.add_subplot()
        for name, (label, colour, marker, style) in LOOKS.items():
            stages = report["servers"].get(name, {}).get("stages", [])
            if not stages:
                continue
            load = [stage["multiple"] for stage in stages]
            goodput = [stage["summary"]["goodput_per_second"] for stage in stages]
            axes.plot(load, goodput, label=label, color=colour, marker=marker, linestyle=style)
        axes.set_xscale("log", base=2)
        multiples = report["plan"]["multiples"]
        axes.set_xticks(multiples, [f"{multiple:g}" for multiple in multiples])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("arrival rate, in multiples of the server's saturation")
        axes.set_ylabel("replies in time, each second")
        axes.set_title(
            f"In time: first token ≤ {slo['time_to_first_token_seconds']:g} s,"
            f" then ≤ {slo['time_per_output_token_seconds']:g} s a token",
            fontsize=9,
        )
        axes.grid(visible=True, axis="y", alpha=0.3)
        axes.legend(frameon=False)
        figure.savefig(file, metadata={"Software": None})
