// The public interface of the library: read, plan, run and compare. Planning a Request validates everything, writes
// nothing and returns a Job; execute runs the Job. Other headers are installed only if these include them; they are
// internal and may change with any version.
//
// All input is read through a Files (io/files.h), such as all_files().
//
//   Request request;
//   request.source.path = "Qwen3-8B";
//   request.output_directory = "shards";
//   request.target.tp = 8;
//   execute(*plan_shard(all_files(), request), RunOptions{});
//
//   const Checkpoint whole = read_checkpoint(all_files(), "Qwen3-8B", {ConfigUse::kStrict});
//   const Checkpoint shards = read_checkpoint(all_files(), "shards", {ConfigUse::kStrict});
//   const bool are_same = verify(whole.map, shards.map, VerifyOptions{}, RunOptions{}).same();
//   const TensorDigest of_first = compute_digests(whole.map, {0}, RunOptions{}).front();
//
// docs/library.md has whole programs.
#pragma once

#include "reshard/engine/check/digests.h"          // compute_digests(map, …): SHA-256 of tensors, in any layout
#include "reshard/engine/check/stats.h"            // compute_stats(map, …): minimum, maximum, mean
#include "reshard/engine/check/verify.h"           // verify(a, b, …)
#include "reshard/engine/check/verify_manifest.h"  // verify_manifest(map, manifest, …), verify_files
#include "reshard/engine/execute.h"                // execute(job, options)
#include "reshard/io/open_store.h"                 // all_files(): the local file system, and other stores
#include "reshard/layouts/core/layout.h"           // Layout, layouts(), TargetRequest
#include "reshard/layouts/layout_table.h"          // layout_named(name), validate_request
#include "reshard/layouts/read_checkpoint.h"       // read_checkpoint(files, path, context): all headers
#include "reshard/layouts/rules/metadata_rules.h"  // partition_rules(metadata, …): each rank's part of a tensor
#include "reshard/plan/plan.h"                     // Request; plan_shard, plan_consolidate, plan_convert
#include "reshard/plan/source/tags.h"              // find_checkpoint: finds the checkpoint of a training run
#include "reshard/specs/family/family.h"           // Family: a model's parameters as data
#include "reshard/specs/family/family_parser.h"    // read_family: parses a Family from a file
#include "reshard/specs/stages/parallel_layers.h"  // parallel layers that a Family describes
#include "reshard/specs/stages/stage_json.h"       // StageMetadata of a custom model
