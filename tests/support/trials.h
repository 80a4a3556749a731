#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "reshard/io/storage.h"
#include "reshard/plan/job.h"
#include "support/models.h"
#include "support/oracle.h"

/// What tests of properties are tried on: everything is drawn from a seed, which a failure prints.
namespace reshard::test {

/// 1 to `count`, or the first of RESHARD_TEST_SHARE equal parts of them, or RESHARD_TEST_SEED alone.
std::vector<std::uint64_t> seeds(std::uint64_t count);

/// RESHARD_TEST_SHARE, or 1: of 3, a test takes each third of its trials where these have no seeds.
std::uint64_t share_of_trials();

/// Whether seeds() has them all, so that a test may count what they have met.
bool has_all_seeds();

std::uint64_t one_of(Random& random, std::initializer_list<std::uint64_t> values);

/// Of any family, with biases, tied or not; its sizes often divide over no mesh.
TinyModel random_model(Random& random);

/// A mesh, which the model may not fit.
OracleOptions random_options(Random& random, const TinyModel& model);

/// A mesh that the model fits.
OracleOptions legal_options(Random& random, const TinyModel& model);

/// The request for a mesh, of no form yet.
void set_target(TargetRequest& request, const OracleOptions& options);

/// The name of a parameter, the same for those that may be fused into one.
std::string joined_name(std::string name);

/// One to three threads with little memory.
RunOptions random_run(Random& random, Storage& storage);

}  // namespace reshard::test
