"""What an operator does to a stopped pipeline: move its checkpoint, recover, adopt a copied directory, clean up."""
