#include "engine/self_test/self_test.h"

#include "base/device_lost.h"
#include "base/error.h"
#include "engine/self_test/kernel_cases.h"

namespace specdec::self_test {

std::vector<KernelCase> kernel_cases(Extent extent) {
  std::vector<KernelCase> cases;
  add_row_cases(cases, extent);
  add_product_cases(cases, extent);
  add_attention_cases(cases, extent);
  add_token_cases(cases, extent);
  return cases;
}

SelfTestResult test_kernels(const TestDevice& device, const std::vector<KernelCase>& cases) {
  SelfTestResult result;
  for (const KernelCase& one : cases) {
    ++result.cases;
    std::string wrong;
    try {
      wrong = one.run(device);
    } catch (const Error& e) {
      wrong = e.what();
    } catch (const DeviceLost& lost) {
      throw DeviceLost(GpuFault{one.kernel, one.shape, lost.what()}.text());
    }
    device.memory.clear();
    if (!wrong.empty()) result.faults.push_back({one.kernel, one.shape, wrong});
  }
  return result;
}

}  // namespace specdec::self_test
