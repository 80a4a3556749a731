#pragma once

#include <functional>
#include <string>
#include <vector>

#include "contest.h"
#include "machine.h"
#include "options.h"

namespace reshard::bench {

/// A table of rows whose programs all promise the same.
struct Table {
  std::string title;
  bool cold = false;
  std::vector<Row> rows;
};

/// Makes a model unless one is given; shards, consolidates and copies it.
std::vector<Table> measure_moves(const Options& options, const WorkDir& work,
                                 const std::function<void(const std::string&)>& log);

/// Runs of reshard that are compared with other runs of it, the `cp_runs`.
struct Beside {
  Row row;
  double most = 0;  // the longest that the runs should take, as a multiple of the others' time; 0: no target
};

/// Several ranks on this machine, compared with one process with as many threads, whose runs are the rows' `cp_runs`;
/// for each installed launcher of MPI.
std::vector<Beside> measure_ranks(const Options& options, const WorkDir& work,
                                  const std::function<void(const std::string&)>& log);

/// Checkpoints of torch.distributed.checkpoint. Those that are read contain Adam's states, two bytes for each of the
/// model, which are not needed: they are compared with copies of the same weights as a Hugging Face directory.
struct DcpMoves {
  Table table;
  std::vector<Beside> beside_torch;  // empty without Options::torch
};
DcpMoves measure_dcp(const Options& options, const WorkDir& work, const std::function<void(const std::string&)>& log);

/// NxD's training checkpoints with the states of ZeRO-1 to other ranks, and to torch.distributed.checkpoint.
Table measure_zero1(const Options& options, const WorkDir& work, const std::function<void(const std::string&)>& log);

/// A run that writes a journal every second, compared with one that writes none, whose runs are the `cp_runs`.
/// \throws std::runtime_error where the runs are too short for that.
Beside measure_journal(const Options& options, const WorkDir& work, const std::function<void(const std::string&)>& log);

}  // namespace reshard::bench
