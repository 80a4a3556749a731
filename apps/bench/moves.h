#pragma once

#include <functional>
#include <string>
#include <vector>

#include "contest.h"
#include "machine.h"
#include "options.h"

namespace reshard::bench {

/// A table of rows whose programs provide the same durability.
struct Table {
  std::string title;
  bool cold = false;
  std::vector<Row> rows;
};

/// Makes a model unless one is given; shards, consolidates and copies it.
std::vector<Table> measure_moves(const Options& options, const WorkDir& work,
                                 const std::function<void(const std::string&)>& log);

/// Runs of reshard compared with other runs of it, the `cp_runs`.
struct Beside {
  Row row;
  double most = 0;  // maximum time of the runs, as a multiple of the `cp_runs`; 0: no target
};

/// Compares several ranks on this machine with one process of as many threads (the rows' `cp_runs`), for each installed
/// MPI launcher.
std::vector<Beside> measure_ranks(const Options& options, const WorkDir& work,
                                  const std::function<void(const std::string&)>& log);

/// Benchmarks of torch.distributed.checkpoint. The checkpoints that are read contain Adam's states, twice the model's
/// bytes, which are not needed: reading is compared with copying the same weights as a Hugging Face directory.
struct MovesBeside {
  Table table;
  std::vector<Beside> beside;  // with other programs; empty without Options::torch or Options::numpy
};
MovesBeside measure_dcp(const Options& options, const WorkDir& work,
                        const std::function<void(const std::string&)>& log);

/// Shards models for NxD Inference: one with experts, and one with and without transposed weights.
MovesBeside measure_nxdi(const Options& options, const WorkDir& work,
                         const std::function<void(const std::string&)>& log);

/// Converts NxD training checkpoints with ZeRO-1 states to other ranks and to torch.distributed.checkpoint.
Table measure_zero1(const Options& options, const WorkDir& work, const std::function<void(const std::string&)>& log);

/// Compares a run that writes a journal every second with one that writes none (the `cp_runs`).
/// \throws std::runtime_error if the runs are too short.
Beside measure_journal(const Options& options, const WorkDir& work, const std::function<void(const std::string&)>& log);

}  // namespace reshard::bench
