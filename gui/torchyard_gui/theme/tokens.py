"""Design tokens: the colours of the light and the dark theme, and metrics. Does not depend on Qt."""

from __future__ import annotations

from typing import NamedTuple


class Tokens(NamedTuple):
    """The colours of one theme as #RRGGBB.

    The colours of text and states have a contrast ratio of at least 4.8 : 1 to `s2`. Users with colour blindness can
    distinguish the colours of roles.
    """

    dark: bool
    # Colours of surfaces: canvas, panel, card, and a control under the pointer.
    s0: str
    s1: str
    s2: str
    hover: str
    # Colours of dividers and of the outlines of chips.
    hair: str
    line: str
    # Colours of text, beginning with the strongest contrast.
    text: str
    text2: str
    text3: str
    # Colours of the selection, the user's own bookings and the primary button.
    accent: str
    accent_soft: str
    accent_hover: str
    on_accent: str
    # Colours of states. A state also has a shape and a name.
    run: str
    wait: str
    wait_soft: str
    fail: str
    fail_soft: str
    unknown: str
    done: str
    stopped: str
    # Colours of roles. A role also has a shape and a letter.
    worker: str
    ps: str
    chief: str
    reducer: str
    evaluator: str
    on_role: str
    # Colours of meters and traffic.
    meter: str
    track: str
    edge: str
    edge_used: str
    # Colours of other users' bookings. The owner's name determines which of five hues is used.
    person1: str
    person2: str
    person3: str
    person4: str
    person5: str
    # Colours of the dots of the canvas grid and of the shadow of floating panels.
    dot: str
    shadow: str


LIGHT = Tokens(
    dark=False,
    s0="#EDEFF2",
    s1="#F7F8FA",
    s2="#FFFFFF",
    hover="#ECEEF2",
    hair="#DADEE4",
    line="#8A93A0",
    text="#191D23",
    text2="#4A5462",
    text3="#606A78",
    accent="#4450C8",
    accent_soft="#E4E6FA",
    accent_hover="#3A45B2",
    on_accent="#FFFFFF",
    run="#287262",
    wait="#8C5800",
    wait_soft="#FBF1DC",
    fail="#86110B",
    fail_soft="#FBE9E6",
    unknown="#3F4654",
    done="#4A5462",
    stopped="#4A5462",
    worker="#2976CB",
    ps="#6F2F00",
    chief="#632885",
    reducer="#2E6647",
    evaluator="#A05C81",
    on_role="#FFFFFF",
    meter="#4A8276",
    track="#E3E7EA",
    edge="#5B6675",
    edge_used="#5B6675",
    person1="#2E6647",
    person2="#6F2F00",
    person3="#632885",
    person4="#A05C81",
    person5="#00627F",
    dot="#DDE0E6",
    shadow="#191D23",
)

DARK = Tokens(
    dark=True,
    s0="#121519",
    s1="#181C21",
    s2="#20252B",
    hover="#262C33",
    hair="#2E353D",
    line="#6E7885",
    text="#E7EAEE",
    text2="#B4BCC7",
    text3="#929CA9",
    accent="#A3ADFF",
    accent_soft="#2A2F55",
    accent_hover="#B8C0FF",
    on_accent="#121519",
    run="#6CAF98",
    wait="#FEDB8A",
    wait_soft="#33291A",
    fail="#F2604A",
    fail_soft="#3A201D",
    unknown="#AEB9C8",
    done="#B4BCC7",
    stopped="#B4BCC7",
    worker="#97C0FC",
    ps="#FCCE94",
    chief="#937BE7",
    reducer="#569F72",
    evaluator="#CF77A0",
    on_role="#121519",
    meter="#4F8F7D",
    track="#2B3138",
    edge="#8D97A4",
    edge_used="#A7B1BE",
    person1="#569F72",
    person2="#FCCE94",
    person3="#937BE7",
    person4="#CF77A0",
    person5="#4FC3E3",
    dot="#1B1F24",
    shadow="#000000",
)


class Metrics(NamedTuple):
    """Lengths in device-independent pixels."""

    # Sizes of the parts around a page's content
    rail: int = 64
    bar: int = 48
    palette: int = 200
    palette_strip: int = 48
    inspector: int = 288
    problems: int = 32
    status: int = 24
    narrow_below: int = 1360
    # Sizes of rows and controls. At a font size of 13 px, a line is 19 px high in Korean and 16 px high in Latin
    # script.
    row: int = 28
    control: int = 28
    line: int = 19
    pad: int = 12
    radius: int = 6
    radius_small: int = 4
    focus_ring: int = 2
    # Sizes on the Topology page
    rack: int = 352
    rack_header: int = 36
    rack_footer: int = 32
    slot_width: int = 76
    slot_height: int = 40
    slot_gap: int = 8
    cpu_chip: int = 28
    gap_across: int = 72
    gap_down: int = 32
    grid: int = 24
    badge: int = 16
    meter: int = 3
    edge: int = 3
    edge_corner: int = 10
    # Sizes on the Bookings page
    lane: int = 22
    host_row: int = 28
    host_folded: int = 36
    lane_header: int = 168
    days_header: int = 46
    drawer: int = 272
    person_bar: int = 4
    own_bar: int = 6
    use_strip: int = 5
    block_radius: int = 3


METRICS = Metrics()
