"""Indexes as Spark DataFrames: `spark.read.format("keytide")`, by PySpark's Python Data Source API.

    core      what `.option(...)` may say; its `where`: a condition on key parts -> spans of an index (pure)
    columns   columns of an index <-> columns of a DataFrame
    opening   driver: hold a snapshot, learn columns and slices; executors: read one slice
    default   the classes that Spark calls

Imported by `pyspark_keytide` only, which Spark imports.

Theory of operation
===================
`load()` runs `DefaultSource.__init__` in a process that Spark starts for it: it has the nodes hold the newest
snapshot that the options allow, and asks for the columns and their types. All of that is kept in the object,
which Spark pickles and keeps with the DataFrame. So every use of the DataFrame, both sides of a self-join and
every attempt of a task read the same snapshot, through the token of the hold. A partition is a slice of the
index, and its task reads it as a stream of Arrow batches, which go on to the JVM as they are.

Nobody tells a Python data source that a job is over, so a hold ends by its lease: `lease_s` seconds after its
last use, and every read renews it. Who wants to say when it ends takes it and gives it back by
`Client.snapshot`, and gives its token as option `at`.

Filters are options (`where`, `equals`, `low`, ...), not `DataFrame.filter`. PySpark has had `pushFilters` for
Python data sources since 4.1, but up to 4.3.0 it keeps what was planned for one use of a loaded DataFrame and
gives it to all others, whatever their filters (it is in `PythonDataSourceV2.readInfo`): `df.filter("a = 1")`,
then `df.count()`, counts one row. Filters of `DataFrame.filter` are therefore Spark's own.
"""
