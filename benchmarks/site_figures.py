"""A hook of mkdocs: the figures in `results` are part of the site, by the links that work in a checkout."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for picture in sorted(Path(__file__).with_name("results").glob("gpu_*.png")):
        # Asked for by name: mkdocs leaves out paths that begin with a dot.
        link, asked = f"../benchmarks/results/{picture.name}", InclusionLevel.INCLUDED
        file = File.generated(config, link, abs_src_path=str(picture), inclusion=asked)
        file.dest_uri = f"benchmarks/{picture.name}"
        files.append(file)
    return files
