"""Draws pictures for the documentation pages of strategies.

python -m tools.strategy_pictures docs/pictures/strategies

Each picture has a background card, so that it looks the same on light and dark pages. The colours are those of the
window's light theme.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

from torchyard_gui.theme.tokens import LIGHT

ROLES = {"chief": LIGHT.chief, "worker": LIGHT.worker, "ps": LIGHT.ps, "reducer": LIGHT.reducer}
TEXT, FAINT, HAIR, EDGE = LIGHT.text, LIGHT.text2, LIGHT.hair, LIGHT.edge
CHIP_W, CHIP_H = 132, 46

Point = tuple[float, float]


class Picture:
    """An SVG picture made of plain shapes. The point (0, 0) is the upper left corner of the card."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="Inter, Helvetica, Arial, sans-serif" font-size="13">',
            f"<title>{escape(title)}</title>",
            f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10" fill="#FFFFFF" stroke="{HAIR}"/>',
        ]

    def text(
        self, x: float, y: float, words: str, *, size: int = 13, color: str = FAINT, anchor: str = "middle"
    ) -> None:
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def chip(self, x: float, y: float, name: str, below: str = "", *, height: float = CHIP_H) -> None:
        """Draws a replica centred at (x, y) in the colour of its role, with a short text about its contents."""
        left, top = x - CHIP_W / 2, y - height / 2
        self._parts.append(
            f'<rect x="{left:g}" y="{top:g}" width="{CHIP_W}" height="{height:g}" rx="7" '
            f'fill="{ROLES[name.rpartition("-")[0]]}"/>'
        )
        self.text(x, y - 4 if below else y + 5, name, size=14, color="#FFFFFF")
        if below:
            self.text(x, y + 13, below, size=11, color="#FFFFFF")

    def frame(self, x: float, y: float, width: float, height: float, name: str) -> None:
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="10" fill="none" stroke="{EDGE}" '
            'stroke-dasharray="5 4"/>'
        )
        self.text(x + 10, y + 17, name, size=12, anchor="start")

    def arrow(self, start: Point, end: Point, *, both: bool = False, bend: float = 0.0, wide: float = 1.4) -> None:
        """Draws an arrow.

        Args:
            bend: Offset of the arrow's middle to the left of the straight line.
        """
        (x1, y1), (x2, y2) = start, end
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        middle = ((x1 + x2) / 2 + bend * (y2 - y1) / length, (y1 + y2) / 2 - bend * (x2 - x1) / length)
        self._parts.append(
            f'<path d="M {x1:g} {y1:g} Q {middle[0]:.1f} {middle[1]:.1f} {x2:g} {y2:g}" fill="none" stroke="{EDGE}" '
            f'stroke-width="{wide}"/>'
        )
        self._head(middle, end)
        if both:
            self._head(middle, start)

    def _head(self, origin: Point, tip: Point) -> None:
        along = (tip[0] - origin[0], tip[1] - origin[1])
        length = (along[0] ** 2 + along[1] ** 2) ** 0.5
        ux, uy = along[0] / length, along[1] / length
        base = (tip[0] - 8 * ux, tip[1] - 8 * uy)
        corners = [tip, (base[0] - 3.5 * uy, base[1] + 3.5 * ux), (base[0] + 3.5 * uy, base[1] - 3.5 * ux)]
        self._parts.append(f'<polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in corners)}" fill="{EDGE}"/>')

    def svg(self) -> str:
        return "\n".join([*self._parts, "</svg>", ""])


def all_reduce() -> Picture:
    picture = Picture(760, 236, "all_reduce: four trainers in a ring")
    xs, y = [104, 288, 472, 656], 92
    for x, name in zip(xs, ("chief-0", "worker-0", "worker-1", "worker-2"), strict=True):
        picture.chip(x, y, name, "model, optimizer")
    for x in xs[:-1]:
        picture.arrow((x + CHIP_W / 2 + 2, y), (x + 184 - CHIP_W / 2 - 2, y))
    picture.arrow((xs[-1], y + CHIP_H / 2 + 2), (xs[0], y + CHIP_H / 2 + 2), bend=110)
    picture.text(380, 34, "Gradients go around a ring in pieces: first their sums, then the results", color=TEXT)
    picture.text(380, 218, "each sends and receives 2M(N−1)/N in every step; all have the same parameters")
    return picture


def sandblaster() -> Picture:
    picture = Picture(760, 300, "sandblaster: workers and parameter servers")
    workers, servers = [70, 150, 230], [98, 202]
    for y, name in zip(workers, ("chief-0", "worker-0", "worker-1"), strict=True):
        picture.chip(110, y, name, "a copy of the model")
    for number, y in enumerate(servers):
        picture.chip(640, y, f"ps-{number}", f"shard {number} and optimizer", height=54)
    for y in workers:
        for server in servers:
            picture.arrow((180, y), (572, server), both=True)
    picture.text(376, 34, "chunk by chunk, all at once: gradients out, new parameters back", color=TEXT)
    picture.text(380, 284, "each worker sends M and receives M in every step; all wait for the slowest")
    return picture


def reduction_server() -> Picture:
    picture = Picture(760, 336, "reduction_server: reducers alone, and reducers and workers together")
    for left, title, mixed in ((0, "as many reducers as workers", False), (380, "fewer reducers: mixed", True)):
        picture.text(left + 190, 34, title, color=TEXT)
        workers = [84, 164, 244]
        reducers = [164] if mixed else workers
        for number, y in enumerate(workers):
            picture.chip(left + 86, y, f"worker-{number}", "optimizer, a share" if mixed else "model, optimizer")
        for number, y in enumerate(reducers):
            picture.chip(left + 300, y, f"reducer-{number}", "sums, keeps nothing")
        for y in workers:
            for reducer in reducers:
                picture.arrow((left + 155, y), (left + 231, reducer), both=True)
        if mixed:
            picture.arrow((left + 64, 109), (left + 64, 139), both=True)
            picture.arrow((left + 64, 189), (left + 64, 219), both=True)
            picture.arrow((left + 18, 92), (left + 18, 236), both=True, bend=-20)
    picture.text(190, 318, "each worker sends and receives M")
    picture.text(570, 318, "a reducer sums 2(N−1)/D of it, a worker (N−k)/D")
    return picture


def downpour() -> Picture:
    picture = Picture(760, 326, "downpour: worker groups and parameter servers")
    picture.frame(30, 52, 160, 124, "group 0")
    picture.frame(30, 188, 160, 76, "group 1")
    workers = [(110, 94, "chief-0"), (110, 146, "worker-0"), (110, 234, "worker-1")]
    for x, y, name in workers:
        picture.chip(x, y, name, "", height=40)
    servers = [110, 214]
    for number, y in enumerate(servers):
        picture.chip(640, y, f"ps-{number}", f"shard {number} and optimizer", height=54)
    for _, y, _ in workers:
        for server in servers:
            picture.arrow((192, y), (572, server), both=True)
    picture.text(380, 34, "groups train on while gradients go out and newer parameters come back", color=TEXT)
    picture.text(380, 288, "a group's gradients are averaged; groups never wait")
    picture.text(380, 308, "sent M/push_every, received M/pull_every a step; a push too far behind is dropped")
    return picture


def hogwild() -> Picture:
    picture = Picture(760, 290, "hogwild: worker groups that exchange deltas")
    xs = [130, 380, 630]
    for number, (x, name) in enumerate(zip(xs, ("chief-0", "worker-0", "worker-1"), strict=True)):
        picture.frame(x - 90, 52, 180, 112, f"group {number}")
        picture.chip(x, 102, name, "model, optimizer")
        picture.text(x, 148, f"master of shard {'ABC'[number]}", size=12, color=TEXT)
    for first, second, bend in ((0, 1, -26), (1, 2, -26), (0, 2, -84)):
        picture.arrow((xs[first] + 18, 168), (xs[second] - 18, 168), both=True, bend=bend)
    picture.text(
        380, 34, "each group steps its own parameters, and in the background sends what they have moved", color=TEXT
    )
    picture.text(
        380, 248, "to a master go the deltas of its shard, from it comes their sum: none is lost, none counts twice"
    )
    picture.text(380, 270, "2M(G−1)/G every sync_every updates, sent and received")
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "all-reduce": all_reduce,
    "sandblaster": sandblaster,
    "reduction-server": reduction_server,
    "downpour": downpour,
    "hogwild": hogwild,
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
