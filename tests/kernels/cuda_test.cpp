// With a GPU, compares CUDA kernels with the reference. Without one, tests how the library is loaded and refused.
#include "engine/kernels/cuda.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/variants.h"

namespace specdec::kernels {
namespace {

TEST(Cuda, LibraryLoads) {
#if SPECDEC_HAS_CUDA
  const CudaLibrary& library = cuda_library();
  EXPECT_EQ(library.version, kCudaLibraryVersion);
  EXPECT_GE(library.device_count(), 0);
#else
  try {
    cuda_library();
    FAIL() << "a build without CUDA offers it";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kDevice);
  }
  EXPECT_EQ(cuda_device_count(), 0);
#endif
}

TEST(Cuda, NoDeviceHasAReason) {
  std::string reason;
  if (cuda_device_count(&reason) > 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_FALSE(reason.empty());
}

TEST(Cuda, KernelsMatchTheReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  at::manual_seed(3);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const double tolerance = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 1e-2 : 4e-2;
    const auto random = [&](at::IntArrayRef shape) { return at::randn(shape).to(dtype); };
    const auto compare = [&](const at::Tensor& found, const at::Tensor& expected) {
      EXPECT_EQ(found.scalar_type(), expected.scalar_type());
      EXPECT_LT((found.cpu().to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>(),
                tolerance * std::max(1.0, expected.abs().max().item<double>()));
    };
    for (const int64_t n : {3, 160, 1000}) {
      const at::Tensor x = random({5, n}), w = random({n}), y = random({5, n});
      compare(rms_norm(x.cuda(), w.cuda(), 1e-5), ref::rms_norm(x, w, 1e-5, {}));
      compare(silu_mul(x.cuda(), y.cuda()), ref::silu_mul(x, y, {}));
    }
    for (const int64_t rows : {1, 5, 64, 65}) {
      const at::Tensor x = random({rows, 72}), w = random({40, 72}), b = random({40});
      compare(linear(x.cuda(), w.cuda(), b.cuda()), ref::linear(x, w, b, {}));
    }
    const at::Tensor x = random({2, 7, 3, 12}), angles = at::randn({7, 6});
    compare(rope(x.cuda(), angles.cos().cuda(), angles.sin().cuda()), ref::rope(x, angles.cos(), angles.sin(), {}));
    const at::Tensor q = random({1, 4, 4, 8}), k = random({1, 2, 9, 8}), v = random({1, 2, 9, 8});
    compare(attention(q.cuda(), k.cuda(), v.cuda()), ref::attention(q, k, v, {}, {}, {}));
  }
}

}  // namespace
}  // namespace specdec::kernels
