"""What atarirb is measured by: rivals, and the measurements with their bars.

python -m benchmarks              make the data, measure all, write the tables into README.md
python -m benchmarks NAME ...     some of them only
python -m benchmarks --quick      with little data: no bar counts, nothing is written
python -m benchmarks.sampling     batches of raw frames, opening, the first batch (see the module)
python -m benchmarks.packed       batches of packed frames, also with less memory than data
python -m benchmarks.codec        what the packed codec's choices give, over eight games
python -m benchmarks.ingest       rate and memory of making a dataset
python -m benchmarks.recording    rate of playing and recording
"""
