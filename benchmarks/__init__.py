"""What atarirb is measured by: play to make logs of, rivals, and the measurements with their bars.

python -m benchmarks             make the data, measure all, write the tables into README.md
python -m benchmarks --quick     the same with little data: no bar counts, nothing is written
python -m benchmarks.sampling    batches, opening, the first batch (see the module)
python -m benchmarks.ingest      rate and memory of making a dataset (see the module)
"""
