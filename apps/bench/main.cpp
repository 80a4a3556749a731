// Microbenchmarks of moving and converting bytes. Configure and build with the preset `bench`, then for example
//   build/bench/apps/bench/reshard_bench --benchmark_filter=split --benchmark_repetitions=5
#include "bench.h"

int main(int argc, char** argv) {
  reshard::bench::register_checksums();
  reshard::bench::register_copies();
  reshard::bench::register_transposes();
  reshard::bench::register_casts();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::ConsoleReporter reporter(benchmark::ConsoleReporter::OO_Tabular);
  benchmark::RunSpecifiedBenchmarks(&reporter);
}
