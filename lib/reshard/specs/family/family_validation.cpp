#include "reshard/specs/family/family_validation.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

/// Every module that is spoken of is there.
void validate_names(const Family& family, const JsonFile& file) {
  const auto validate_module = [&](const std::string& name, const std::string& pointer, const std::string& wanted_by) {
    for (const Family::Module& module : family.modules)
      if (module.name == name) return;
    throw file.error(pointer, wanted_by + " names the module " + printable(name) + ", which does not exist");
  };
  bool after_layers = false;
  for (std::size_t i = 0; i < family.modules.size(); ++i) {
    const Family::Module& module = family.modules[i];
    const std::string pointer = "/modules/" + std::to_string(i);
    if (!module.tied_to.empty() && module.tied_to == module.name)
      throw file.error(pointer + "/tied_to", "\"tied_to\" of " + printable(module.name) + " names itself");
    if (!module.tied_to.empty()) {
      const std::string what = "\"tied_to\" of " + printable(module.name);
      validate_module(module.tied_to, pointer + "/tied_to", what);
      for (const Family::Module& source : family.modules)
        if (source.name == module.tied_to && (source.parameter != "weight" || source.when || source.optional ||
                                              source.name.find('*') != std::string::npos))
          throw file.error(pointer + "/tied_to", what + " names " + printable(source.name) +
                                                     ", which is in the layers, or not in every checkpoint");
    }
    const bool layered = module.is_layered();
    if (!layered && module.is_list() && !family.layers.empty() && module.name.starts_with(family.layers + ".*"))
      throw file.error(pointer + "/name", fmt::format("\"name\" {} has one star, which is the layer's number: "
                                                      "\"experts\" or \"items\" need a second",
                                                      printable(module.name)));
    if (layered && family.layers.empty())
      throw file
          .error(pointer + "/name", fmt::format("\"name\" {} has a star for a layer's number, but \"layers\" is "
                                                "missing",
                                                printable(module.name)))
          .hint("\"layers\" is the prefix of a layer's names: \"model.layers\"");
    if (layered && !module.name.starts_with(family.layers + ".*."))
      throw file.error(pointer + "/name", fmt::format("\"name\" {} does not begin with \"layers\", {}.*.",
                                                      printable(module.name), printable(family.layers)));
    if (layered && after_layers)
      throw file.error(pointer + "/name", fmt::format("the modules of the layers are not consecutive: {} comes late",
                                                      printable(module.name)));
    after_layers = after_layers || (!layered && i > 0 && family.modules[i - 1].is_layered());
  }
  for (std::size_t i = 0; i < family.fused.size(); ++i)
    for (const std::string& linear : family.fused[i].linears)
      validate_module(family.fused[i].module + "." + linear, fmt::format("/fused/{}/linears", i),
                      "\"linears\" of " + printable(family.fused[i].name));
  if (!family.attention) return;
  const Family::Attention& attention = *family.attention;
  for (const std::string& linear : {attention.query, attention.key, attention.value, attention.output})
    validate_module(attention.module + "." + linear, "/attention", "\"attention\"");
}

/// Validates that no module is listed twice. Modules with `when`, and different parameters of one, may share a name.
void validate_unique(const Family& family, const JsonFile& file) {
  std::set<std::pair<std::string, std::string>> always;
  for (std::size_t i = 0; i < family.modules.size(); ++i) {
    const Family::Module& module = family.modules[i];
    if (!module.when && !always.emplace(module.name, module.parameter).second)
      throw file.error(fmt::format("/modules/{}/name", i), "\"name\" " + printable(module.name) + " is listed twice");
  }
}

/// Validates that fused linears are split along the same dim, and that their fused names are unique.
void validate_fused(const Family& family, const JsonFile& file) {
  const auto validate_plan = [&](const std::string& name, TensorParallelPlan plan, const std::string& pointer,
                                 const std::string& what) {
    for (const Family::Module& module : family.modules)
      if (module.name == name && module.parameter == "weight" && module.plan != plan)
        throw file.error(pointer, fmt::format("{} {} needs the plan {}", what, printable(name),
                                              plan == TensorParallelPlan::kColwise ? "colwise" : "rowwise"));
  };
  const auto validate_new = [&](const std::string& name, const std::string& pointer) {
    for (const Family::Module& module : family.modules)
      if (module.name == name)
        throw file.error(pointer, "the fused linear cannot be called " + printable(name) + ", as a module is");
  };
  for (std::size_t i = 0; i < family.fused.size(); ++i) {
    const Family::Fused& fused = family.fused[i];
    const std::string pointer = fmt::format("/fused/{}", i);
    if (fused.linears.size() < 2 || std::set(fused.linears.begin(), fused.linears.end()).size() != fused.linears.size())
      throw file.error(pointer + "/linears",
                       fmt::format("\"linears\" of {} are not several different ones", printable(fused.name)));
    for (const std::string& linear : fused.linears)
      validate_plan(fused.module + "." + linear,
                    fused.axis == 1 ? TensorParallelPlan::kRowwise : TensorParallelPlan::kColwise, pointer + "/linears",
                    "of \"linears\" to fuse,");
    for (const Family::Module& module : family.modules)
      for (const std::string& linear : fused.linears)
        if (fused.axis == 1 && module.bias && module.name == fused.module + "." + linear)
          throw file.error(pointer + "/linears",
                           fmt::format("of \"linears\" to fuse, {} is split along its inputs, and "
                                       "so it cannot have a bias",
                                       printable(module.name)));
    validate_new(fused.module + "." + fused.name, pointer + "/name");
  }
  if (!family.attention) return;
  const Family::Attention& attention = *family.attention;
  for (const std::string& linear : {attention.query, attention.key, attention.value})
    validate_plan(attention.module + "." + linear, TensorParallelPlan::kColwise, "/attention", "of \"attention\",");
  validate_plan(attention.module + "." + attention.output, TensorParallelPlan::kRowwise, "/attention",
                "the output of \"attention\",");
  validate_new(attention.module + "." + attention.fused, "/attention/fused");
}

}  // namespace

void validate_family(const Family& family, const JsonFile& file) {
  validate_names(family, file);
  validate_unique(family, file);
  validate_fused(family, file);
}

}  // namespace reshard
