"""Characters of several code points, on a screen whose library takes every code point for a character of its own.

prompt_toolkit places text code point by code point: it would put the cursor six columns too far to the right of a
family of four emoji. While a text is laid out, one code point that nobody uses stands for such a cluster; before it is
written to the terminal, the cluster is put back. Not every terminal draws it as wide as it is measured here, so the
cursor is then told its column.
"""

from itertools import groupby

from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.layout import HSplit
from prompt_toolkit.layout.mouse_handlers import MouseHandlers
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.layout.screen import Char, Screen, WritePosition
from prompt_toolkit.layout.utils import explode_text_fragments
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.utils import get_cwidth

from talaria.cli.screen.width import cluster_before, cluster_width, clusters

_FREE_CODES = {1: range(0x10F000, 0x10FFFE), 2: range(0x3F000, 0x3FFFE)}
"""Code points by how many columns they take: private ones, and the end of a plane for ideographs."""

_MAX_CLUSTER_CODES = 64
"""Code points that are looked at: accents can be piled up without end."""


_COLUMN_MARK = "\0"
"""Between a cluster and the column behind it; a text to draw never has this character."""


class ClusterOutput(Vt100_Output):
    def write(self, data: str) -> None:
        text, _, column = data.partition(_COLUMN_MARK)
        super().write(text)
        if column:
            self.write_raw(f"\x1b[{column}G")


class ClusterPlaceholders:
    """Which code point stands for which cluster. As many as there are; more are drawn as they come."""

    def __init__(self) -> None:
        self._clusters: dict[str, str] = {}
        self._found: dict[str, str] = {}
        self._left = {columns: iter(codes) for columns, codes in _FREE_CODES.items()}

    def pack(self, text: str) -> str:
        """With one code point for each cluster that would be measured wrongly."""
        if text.isascii():
            return text
        return "".join(self._placeholder(cluster) for cluster in clusters(text))

    def pack_fragments(self, fragments: StyleAndTextTuples) -> StyleAndTextTuples:
        """Neighbours of one style are taken together: a cluster may be spread over several."""
        grouped = groupby(fragments, key=lambda fragment: fragment[0])
        return [(style, self.pack("".join(one[1] for one in group))) for style, group in grouped]

    def unpack(self, screen: Screen) -> None:
        if not self._clusters:
            return
        for row in screen.data_buffer.values():
            for column, char in row.items():
                if char.char[:1] in self._clusters:
                    whole = Char(char.char, char.style)  # as wide as what stood for it
                    text = self._clusters[char.char[0]] + char.char[1:]
                    whole.char = f"{text}{_COLUMN_MARK}{column + char.width + 1}"
                    row[column] = whole

    def _placeholder(self, cluster: str) -> str:
        if cluster in self._found:
            return self._found[cluster]
        wide = cluster_width(cluster)
        is_taken = any(ord(cluster[0]) in codes for codes in _FREE_CODES.values())
        if wide not in _FREE_CODES or (wide == get_cwidth(cluster) and not is_taken):
            return cluster
        code = next(self._left[wide], None)
        if code is None:
            return cluster
        self._found[cluster] = chr(code)
        self._clusters[chr(code)] = cluster
        return self._found[cluster]


class ClusterProcessor(Processor):
    """The line that is typed on, packed; the cursor follows."""

    def __init__(self, stand_ins: ClusterPlaceholders) -> None:
        self._placeholders = stand_ins

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        exploded = explode_text_fragments(transformation_input.fragments)
        text = "".join(fragment[1] for fragment in exploded)
        if text.isascii():
            return Transformation(exploded)
        drawn: StyleAndTextTuples = []
        to_display, to_source = list[int](), list[int]()
        for cluster in clusters(text):
            packed = self._placeholders.pack(cluster)
            is_one = len(packed) < len(cluster)
            for place in range(len(cluster)):
                to_display.append(len(to_source) + (0 if is_one else place))
            to_source += range(len(to_display) - len(cluster), len(to_display) - len(cluster) + len(packed))
            style = exploded[to_source[-1]][0]
            drawn.append((style, packed))
        return Transformation(
            drawn,
            source_to_display=lambda place: _map_position(to_display, len(to_source), place),
            display_to_source=lambda place: _map_position(to_source, len(to_display), place),
        )


class ClusterSplit(HSplit):
    """All of the screen: what was packed is put back once it is laid out."""

    placeholders: ClusterPlaceholders

    def write_to_screen(
        self,
        screen: Screen,
        mouse_handlers: MouseHandlers,
        write_position: WritePosition,
        parent_style: str,
        erase_bg: bool,
        z_index: int | None,
    ) -> None:
        super().write_to_screen(screen, mouse_handlers, write_position, parent_style, erase_bg, z_index)
        screen.draw_all_floats()
        self.placeholders.unpack(screen)


def _map_position(places: list[int], end: int, place: int) -> int:
    """What is past the end stays as far past it."""
    return places[place] if place < len(places) else end + place - len(places)


def next_cluster(text: str, place: int) -> int:
    """Where the cluster ends that begins here."""
    return place + len(next(clusters(text[place : place + _MAX_CLUSTER_CODES]), ""))


def inside_cluster(text: str, place: int) -> int | None:
    """Where the cluster begins that this place is inside of; None: it is between two."""
    if not 0 < place < len(text):
        return None
    begin = cluster_before(text, place + 1)
    return begin if begin < place else None
