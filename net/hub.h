// Fills the Hugging Face cache with the files that a model needs: config, tokenizer, chat template, safetensors. Never
// pickle, never code. The cache is left as huggingface_hub 2 keeps it (base/hub_cache.h), so either reads what the
// other wrote.
#pragma once

#include <string>

#include "base/hub_cache.h"
#include "base/progress.h"
#include "net/http_client.h"

namespace specdec::net {

// Every file name at the root of a repository that a model may need; weights are chosen as base/safetensors reads them.
bool is_model_file(const std::string& name);

struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  Secret token;                    // sent to the endpoint's origin alone, over https or to this machine
  std::string token_source;        // "HF_TOKEN" or a file's path; "" = no token
  bool offline = false;            // the cache alone
  double metadata_timeout_s = 10;  // of a question about a repository or a file
  double stall_timeout_s = 10;     // a download slower than 1 KiB/s for so long is broken off and continued
  Backoff backoff = [] {
    Backoff b;
    b.max_attempts = 5;
    return b;
  }();
};

// HF_ENDPOINT; HF_TOKEN, HUGGING_FACE_HUB_TOKEN, the file HF_TOKEN_PATH (else HF_HOME/token), unless
// HF_HUB_DISABLE_IMPLICIT_TOKEN; HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE; HF_HUB_ETAG_TIMEOUT, HF_HUB_DOWNLOAD_TIMEOUT
// (seconds). A process that has read a token leaves no core file. Throws Error(kUsage | kConfig) for an endpoint, a
// time or a token that is none.
HubOptions hub_options_from_environment();

// The snapshot of this revision, complete. A commit that is there is used without a question; a branch or tag is asked
// for, and where the hub cannot be reached the cached one is used, with a warning. Downloads are continued where an
// earlier one broke off, checked against the size and the digest the hub gave, and get their names last; any number of
// processes may do so at once. Throws Error(kModel): no such model, revision or file, no safetensors, hostile or
// malformed answers, a wrong digest; Error(kUsage): a gated model, a refused token; Error(kNetwork): unreachable,
// broken off, 429, 5xx; Error(kIo): the disk, before it is full.
HubSnapshot fetch_model(const HubName& hub, const HubOptions& options, const ProgressFn& progress = {});

}  // namespace specdec::net
