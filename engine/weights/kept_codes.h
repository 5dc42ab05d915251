// Matrices of quantised checkpoints that stay codes in a decoder (kernels/coded.h).
#pragma once

#include "engine/kernels/coded.h"
#include "engine/weights/weights.h"

namespace specdec::model {

// Packs the matrix that is to be `parameter` of the weights, on the host, and notes the order of its inputs in its
// layer. Returns an undefined tensor if it cannot stay as it is: it has no place in the layout, or the inputs of
// another matrix that is multiplied by the same x are in another order.
at::Tensor keep_codes(DecoderWeights& weights, const at::Tensor* parameter, const kernels::CodedMatrix& matrix);

// Ends the loading of a decoder with codes, on its device: dequantises gates whose partner is packed in another way, as
// one kernel multiplies by both, and moves the orders of inputs to the device.
void finish_codes(Decoder& decoder, at::Device device);

}  // namespace specdec::model
