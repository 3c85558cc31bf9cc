"""Pages of the site that are made while it is built: what is said there stands in the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

ROOMS = (
    "problem", "ir", "schedules", "simulator", "variation", "planning", "search", "optimal", "migration",
    "rl", "runtime", "interop", "evaluation", "whatif", "report", "errors",
)  # fmt: skip
"""Of the API reference, in the order of the way from a spec to a report."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages; MkDocs calls it."""
    pages = {"commands.md": commands(), "api.md": api()}
    pages |= {
        f"api/{room}.md": f"# conductor.{room}\n\n::: conductor.{room}\n    options:\n"
        "      show_root_heading: false\n"
        for room in ROOMS
    }
    pages |= {
        f"{name.lower()}.md": (ROOT / f"{name}.md").read_text()
        for name in ("CONTRIBUTING", "CHANGELOG")
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the rooms' pages under the API reference, and pages without a place under the results."""
    placed = str(config.nav)
    for section in config.nav or ():
        if "Reference" in section:
            entries = section["Reference"]
            place = entries.index("api.md")
            entries[place] = {"Python": ["api.md", *(f"api/{room}.md" for room in ROOMS)]}
        elif "Results" in section:
            names = sorted(path.name for path in Path(config.docs_dir).glob("*.md"))
            section["Results"] += [name for name in names if f"'{name}'" not in placed]
    return config


def api() -> str:
    """The names that `import conductor` gives, and where the rest is."""
    import conductor

    rooms = "\n".join(f"- [`conductor.{room}`](api/{room}.md)" for room in ROOMS)
    names = "\n".join(
        f"- [`conductor.{name}`][{conductor._HOMES[name]}.{name}]" for name in conductor.__all__
    )
    return (
        f"# Python\n\n`import conductor` is quick, and gives these names:\n\n{names}\n\n"
        "The rest is imported from its room, as in `from conductor.schedules.registry import build`:"
        f"\n\n{rooms}\n"
    )


def commands() -> str:
    """Every command with its arguments, options and examples."""
    from conductor.cli.app import EXIT_CODES, app

    group: Any = typer.main.get_command(app)
    parts = [
        "# Commands",
        "Each command has this text in `--help`. `conductor --install-completion` makes the shell complete"
        " commands, options, and the names of presets, schedules, scenarios and hardware.",
        EXIT_CODES,
    ]
    for name, command in group.commands.items():
        usage, examples = [f"conductor {name}"], command.epilog.partition("Examples:")[2]
        rows, context = [], command.make_context(name, [], resilient_parsing=True)
        for parameter in command.params:
            if parameter.name == "help":
                continue
            if parameter.param_type_name == "argument":
                names = f"`{parameter.metavar or parameter.name.upper()}`"
                usage.append((parameter.metavar or parameter.name.upper()).strip("[]"))
            else:
                names = ", ".join(
                    f"`{text}`" for text in (*parameter.opts, *parameter.secondary_opts)
                )
                values = parameter.metavar or (
                    "" if parameter.is_flag else parameter.display_type(context)
                )
                names += f" `{values}`" if values else ""
            rows.append(f"| {names} | {_cell(parameter.help)} | {_default(parameter)} |")
        parts += [
            f"## conductor {name}",
            command.help.strip(),
            f"    {' '.join(usage)} [OPTIONS]",
            "\n".join(["| | | default |", "| --- | --- | --- |", *rows]),
            "Examples:",
            "\n".join(f"    {line.strip()}" for line in examples.strip().splitlines()),
        ]
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    """Text for a table's cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if parameter.is_flag if hasattr(parameter, "is_flag") else False:
        return ""
    return "" if parameter.default in (None, ()) else f"`{parameter.default}`"
