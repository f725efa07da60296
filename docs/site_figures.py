"""A hook of mkdocs: the figures in `results` are part of the site, by the links that work in a checkout."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel


# Folder of the pictures, which of them, and where they go on the site.
PICTURES = (("benchmarks/results", "gpu_*.png", "benchmarks"), ("results", "*.svg", "results"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for folder, pattern, place in PICTURES:
        for picture in sorted((Path(__file__).parents[1] / folder).glob(pattern)):
            # Asked for by name: mkdocs leaves out paths that begin with a dot.
            link, asked = f"../{folder}/{picture.name}", InclusionLevel.INCLUDED
            file = File.generated(config, link, abs_src_path=str(picture), inclusion=asked)
            file.dest_uri = f"{place}/{picture.name}"
            files.append(file)
    return files
