"""Analyses as text, JSON and tables: an analysis in, characters out."""
