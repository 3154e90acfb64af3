"""Speech to text: recordings cut into windows, a model, gates, and one record from which every format is written."""
