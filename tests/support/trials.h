#pragma once

#include <string>

#include "reshard/io/storage.h"
#include "reshard/plan/job/job.h"
#include "support/models.h"
#include "support/oracle.h"

/// Models and meshes to try properties on.
namespace reshard::test {

/// Of any family, with biases, tied or not; its sizes often divide over no mesh.
TinyModel random_model(Random& random);

/// A mesh, which the model may not fit.
OracleOptions random_options(Random& random, const TinyModel& model);

/// A mesh that the model fits.
OracleOptions legal_options(Random& random, const TinyModel& model);

/// Chooses whether layout nxd has GQAQKVColumnParallelLinear, whatever the source has.
void choose_qkv_linear(Random& random, const TinyModel& model, OracleOptions& options);

/// The request for a mesh, of no form yet.
void set_target(TargetRequest& request, const OracleOptions& options);

/// The name of a parameter, the same for those that may be fused into one.
std::string joined_name(std::string name);

/// One to three threads with little memory.
RunOptions random_run(Random& random, Storage& storage);

}  // namespace reshard::test
