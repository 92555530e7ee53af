"""The programs in examples/ and the Python in the documents, run as a reader runs them."""
