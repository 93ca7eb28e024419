"""Readers of files: clouds, meshes and recordings. One file per format."""
