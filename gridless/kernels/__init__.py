"""Machinery that no operation owns."""
