"""The strategies sandblaster and downpour: parameter servers, and the workers that use them."""
