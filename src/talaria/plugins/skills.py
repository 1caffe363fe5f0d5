"""Skills that plugins bring: texts that the model reads when it wants to, by their full name."""

from collections.abc import Mapping
from typing import Annotated

from talaria.core.errors import BadArguments, ToolFailed
from talaria.files import read_text
from talaria.plugins.registered import PluginSkill
from talaria.tools.base import NOTHING, READS, Tool
from talaria.tools.function import tool

MAX_BYTES = 200_000


def skill_tool(skills: Mapping[str, PluginSkill]) -> Tool:
    listed = "\n".join(f"- {skill.name}: {skill.description}" for skill in skills.values())

    def skill_view(name: Annotated[str, "as listed, `plugin:name`"]) -> str:
        skill = skills.get(name)
        if skill is None:
            raise BadArguments(f"There is no skill {name!r}. There are: {', '.join(skills)}.")
        text = read_text(skill.path, MAX_BYTES)
        if text is None:
            raise ToolFailed(f"The file of skill {name} cannot be read.")
        return text

    skill_view.__doc__ = f"Read one of these skills, which tell how to do something, before you do it:\n{listed}"
    return tool(skill_view, after_crash="repeat", effect=READS, claim=NOTHING)
