"""Observations in, private periods out."""
