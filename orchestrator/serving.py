"""Champions of earlier versions import `orchestrator.serving`; it is `tinyattn.serving` now."""

from tinyattn.serving import _load_pyfunc

__all__ = ["_load_pyfunc"]
