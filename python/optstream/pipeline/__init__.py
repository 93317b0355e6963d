"""The parts that a mechanism is made of: sampling, noise, reconstruction, features, hierarchies, projection."""
