"""Queries of five kinds on a table of 100,000 rows, in chDB, one query after the other, as many as each line of stdin says."""

import sys

from chdb import session

QUERIES = ["select sum(v) from bench.t where k = {n}", "select k, count() from bench.t where v % 97 = {n} % 97 group by k order by k limit 5",
           "select max(length(s)) from bench.t where k between {n} and {n} + 9", "select avg(v), quantile(0.9)(v) from bench.t where k < {n}",
           "select count() from bench.t where s like '%{n}%'"]

chdb = session.Session()
chdb.query("create database bench")
chdb.query("create table bench.t (k UInt32, v UInt64, s String) engine = MergeTree order by k")
chdb.query("insert into bench.t select number % 1000, cityHash64(number), hex(sipHash64(number)) from numbers(100000)")
chdb.query("set max_threads = 1")
count = 0
for times in sys.stdin:
    for _ in range(int(times)):
        chdb.query(QUERIES[count % len(QUERIES)].format(n=count % 1000))
        count += 1
    print("done", flush=True)
