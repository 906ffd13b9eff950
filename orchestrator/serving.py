"""The name under which champions that were registered earlier look for `tinyattn.serving`."""

from tinyattn.serving import _load_pyfunc

__all__ = ["_load_pyfunc"]
