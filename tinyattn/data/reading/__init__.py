"""Reading of data files: rows as their files have them, checked before a parser sees them."""

from tinyattn.data.reading.encodings import encoding_notes
from tinyattn.data.reading.files import quiet_datasets, read_file
from tinyattn.data.reading.folders import digest_folder
from tinyattn.data.reading.json_rows import values_of

__all__ = ["digest_folder", "encoding_notes", "quiet_datasets", "read_file", "values_of"]
