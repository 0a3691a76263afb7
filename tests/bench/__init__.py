"""Benchmarks: what a call and an idle agent cost, measured side by side in one run.

python -m bench            everything, some three minutes   (from `tests/`, see README)
python -m bench memory     only the parts that are named: cpu, memory, account
"""
