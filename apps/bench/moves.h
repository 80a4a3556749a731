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

/// Makes a model unless one is given, shards and consolidates it, and copies it beside.
std::vector<Table> measure_moves(const Options& options, const WorkDir& work,
                                 const std::function<void(const std::string&)>& log);

/// Runs beside others of the program, which are the `cp_runs`.
struct Beside {
  Row row;
  double most = 0;  // times as long as the others they should take, at most; 0: nobody asks
};

/// The same by several ranks on this machine, beside one process with as many threads, whose runs are the `cp_runs` of the
/// rows: for each launcher of MPI that is installed.
std::vector<Beside> measure_ranks(const Options& options, const WorkDir& work,
                                  const std::function<void(const std::string&)>& log);

/// Checkpoints of torch.distributed.checkpoint. What is read has Adam's states, two bytes for each of the model, which
/// nobody asks for: the copies beside are of a Hugging Face directory of the same weights.
struct DcpMoves {
  Table table;
  std::vector<Beside> beside_torch;  // empty without Options::torch
};
DcpMoves measure_dcp(const Options& options, const WorkDir& work, const std::function<void(const std::string&)>& log);

/// NxD's training checkpoints with the states of ZeRO-1 to other ranks, and to torch.distributed.checkpoint.
Table measure_zero1(const Options& options, const WorkDir& work, const std::function<void(const std::string&)>& log);

/// A run that writes a journal every second, beside one that writes none, whose runs are the `cp_runs`.
/// \throws std::runtime_error where the runs are too short for that.
Beside measure_journal(const Options& options, const WorkDir& work, const std::function<void(const std::string&)>& log);

}  // namespace reshard::bench
