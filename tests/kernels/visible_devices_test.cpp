#include "engine/kernels/visible_devices.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace specdec::kernels {
namespace {

// Sets CUDA_VISIBLE_DEVICES, or removes it if null, during its lifetime.
class Visible {
 public:
  explicit Visible(const char* value) {
    if (const char* old = std::getenv(kName)) old_ = old, had_ = true;
    set(value);
  }
  ~Visible() { set(had_ ? old_.c_str() : nullptr); }
  Visible(const Visible&) = delete;
  Visible& operator=(const Visible&) = delete;

 private:
  static constexpr const char* kName = "CUDA_VISIBLE_DEVICES";
  static void set(const char* value) { value ? ::setenv(kName, value, 1) : ::unsetenv(kName); }
  std::string old_;
  bool had_ = false;
};

TEST(VisibleDevices, AMissingDeviceIsNamedWithWhatIsVisible) {
  {
    const Visible none(nullptr);
    EXPECT_EQ(no_such_device(3, 2),
              "no CUDA device 3: 2 are visible, cuda:0 to cuda:1 (CUDA_VISIBLE_DEVICES is not set)");
  }
  {
    const Visible one("MIG-5c4d,\nGPU-1");
    EXPECT_EQ(no_such_device(1, 1), "no CUDA device 1: 1 is visible, cuda:0 (CUDA_VISIBLE_DEVICES=MIG-5c4d, GPU-1)");
  }
  const Visible empty("");
  EXPECT_EQ(visible_devices_text(), "CUDA_VISIBLE_DEVICES=");
}

}  // namespace
}  // namespace specdec::kernels
