#include "support/requests.h"

#include <fmt/format.h>

#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"

namespace reshard::test {

namespace fs = std::filesystem;

namespace {

OptionValues options_of(const std::vector<std::string>& texts) {
  OptionValues options;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    if (equals == text.npos)
      options.set(text);
    else
      options.set(text.substr(0, equals), text.substr(equals + 1));
  }
  return options;
}

Request request_of(const fs::path& source, const fs::path& output, const RequestFields& fields) {
  Request request;
  request.source.path = source;
  request.source.config = fields.config;
  request.source.family = fields.family;
  request.source.options = options_of(fields.source_options);
  request.source.with_optimizer = fields.with_optimizer;
  request.output_directory = output;
  if (!fields.layout.empty()) request.target.layout = layout(fields.layout);
  request.target.format = fields.format;
  request.target.tp = fields.tp;
  request.target.pp = fields.pp;
  request.target.vpp = fields.vpp;
  request.target.ep = fields.ep;
  request.target.pipeline_cuts = fields.cuts;
  request.target.options = options_of(fields.options);
  request.dtype = fields.dtype;
  request.force = fields.force;
  return request;
}

}  // namespace

Request shard_request(const fs::path& model, const fs::path& output, const RequestFields& fields) {
  auto request = request_of(model, output, fields);
  if (request.target.layout == nullptr) request.target.layout = layout("ranks");
  if (!request.target.format) request.target.format = usual_format(*request.target.layout);
  return request;
}

Request convert_request(const fs::path& source, const fs::path& output, const RequestFields& fields) {
  auto request = request_of(source, output, fields);
  request.check_replicas = fields.check_replicas;
  return request;
}

Request consolidate_request(const fs::path& source, const fs::path& output, const RequestFields& fields) {
  auto request = request_of(source, output, fields);
  request.check_replicas = fields.check_replicas;
  return request;
}

RunResult shard(const fs::path& model, const fs::path& output, const RequestFields& fields) {
  return shard(shard_request(model, output, fields));
}

RunResult convert(const fs::path& source, const fs::path& output, const RequestFields& fields) {
  return convert(convert_request(source, output, fields));
}

TensorMap converted(const fs::path& source, const fs::path& output, const RequestFields& fields) {
  fs::remove_all(output);
  convert(source, output, fields);
  return read_whole(output);
}

TensorMap consolidated(const fs::path& source, const fs::path& output, const RequestFields& fields) {
  fs::remove_all(output);
  consolidate(consolidate_request(source, output, fields));
  return read_whole(output);
}

std::string joined_notes(const Job& job) {
  return fmt::format("{}\n", fmt::join(job.notes.texts(), "\n"));
}

}  // namespace reshard::test
