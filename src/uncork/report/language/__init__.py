"""The part of a report that shows language-model runs."""
