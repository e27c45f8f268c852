"""The file that marks a project of one's own, and where it is looked for.

A project is a folder that holds `sluice.yaml`. Commands look for it in the working folder and in those above, as git
looks for `.git` and dbt for `dbt_project.yml`, so they find the project's declarations from anywhere inside it. The
product's own checkout has none: its demo is what is used where nothing else is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sluice.errors import SettingsError

PROJECT_FILE = "sluice.yaml"


class _Content(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    pipelines: str = Field("pipelines", min_length=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project of one's own.

    Parameters
    ----------
    file: its `sluice.yaml`.
    pipelines: the folder of its declarations, which exists.
    """

    file: Path
    pipelines: Path


def find_project(start: Path) -> Project | None:
    """The project that a folder belongs to: that of the nearest `sluice.yaml` in it or above. None when there is none.

    Parameters
    ----------
    start: the folder to begin with.

    Raises
    ------
    SettingsError: when the file cannot be read, or names a folder that does not exist.
    """
    folder = start.resolve()
    file = next((place / PROJECT_FILE for place in (folder, *folder.parents) if (place / PROJECT_FILE).is_file()), None)
    return None if file is None else _read(file)


def _read(file: Path) -> Project:
    try:
        content = _Content.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")) or {})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in one['loc']) or 'the file'}: {one['msg']}" for one in error.errors()
        )
        raise SettingsError(f"{file} is wrong: {problems}.", next_step=_ALLOWED) from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"{file} cannot be read: {error}.", next_step=_ALLOWED) from error
    pipelines = (file.parent / content.pipelines).resolve()
    if not pipelines.is_dir():
        raise SettingsError(
            f"{file} says that the declarations are in {pipelines}, and there is no such folder.",
            next_step="Make the folder, or correct `pipelines` in the file.",
        )
    return Project(file=file, pipelines=pipelines)


_ALLOWED = "It holds one key, `pipelines`: the folder of the declarations, seen from the file; `pipelines` when unset."
