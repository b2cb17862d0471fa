"""Datasets on disk: `manifest` describes them, `dataset` opens them, codecs keep the frames."""
