#include "distill/run/compute_dtype.h"

#include "engine/weights/weights.h"

namespace specdec::distill {

ComputeDtype choose_compute_dtype(const std::string& flag, const model::DecoderConfig* target,
                                  const model::DecoderConfig& draft, at::Device device, const CpuFeatures& cpu) {
  if (flag != "auto") return {flag, "--dtype says so"};
  const at::ScalarType own = target ? target->dtype : draft.dtype;
  const bool alike = own == draft.dtype;
  if (!device.is_cpu()) return {alike ? model::dtype_flag(own) : "auto", "a GPU computes in the checkpoint's dtype"};
  if (alike && own == at::kFloat) return {"fp32", "the checkpoint's dtype"};
  if (!alike) return {"fp32", "the widest that target and draft have in common"};
  if (own == at::kBFloat16 && cpu.multiplies_bf16())
    return {"bf16", "the checkpoint's dtype, which this CPU multiplies"};
  const std::string name = model::dtype_flag(own);
  return {"fp32", "the checkpoint is in " + name + ", which this CPU (" + cpu.text() + ") multiplies slowly"};
}

at::ScalarType published_dtype(at::ScalarType computed, at::ScalarType checkpoint) {
  return computed == at::kFloat ? checkpoint : computed;
}

}  // namespace specdec::distill
