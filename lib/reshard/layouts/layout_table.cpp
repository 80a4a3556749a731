// The table of layouts: one declaration and one list entry per layout.
#include "reshard/layouts/core/layout.h"

namespace reshard {

const Layout& hf_layout();
const Layout& ranks_layout();
const Layout& optimum_layout();
const Layout& nxd_layout();
const Layout& presharded_layout();
const Layout& nxdi_layout();
const Layout& vllm_layout();
const Layout& deepspeed_layout();
const Layout& dcp_layout();
const Layout& fsdp_ranks_layout();

// If two layouts use the same file names, the more specific layout comes first.
std::span<const Layout* const> layouts() {
  static const Layout* const kLayouts[] = {
      &hf_layout(),         &ranks_layout(), &optimum_layout(),   &nxd_layout(), &nxdi_layout(),
      &presharded_layout(), &vllm_layout(),  &deepspeed_layout(), &dcp_layout(), &fsdp_ranks_layout(),
  };
  return kLayouts;
}

}  // namespace reshard
