// Reads acceptance counters from a page in Prometheus' text format or from a Prometheus server. Recognises the series
// names of specdec, vLLM, SGLang, TensorRT-LLM and llama.cpp, and their names after renaming by Ray Serve and KServe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "monitor/read/exposition.h"
#include "monitor/read/few.h"

namespace specdec::monitor {

// The pair of models that a server says it serves (specdec:info).
struct ServedPair {
  std::string draft, target;  // fingerprints, "" = not stated
  bool operator==(const ServedPair&) const = default;
};

// The counters of one scrape: its series, one for each label set (engine, rank, instance, …), and their sums. Use
// difference() to compare two scrapes: the difference of their sums would not show that a replica restarted.
struct Counters {
  bool any = false;    // the page has series of speculative decoding, even if all are 0
  std::string engine;  // specdec | vllm | sglang | trtllm | llamacpp
  int64_t time = 0;    // unix seconds of the scrape, 0 = unknown
  // "name{label=\"value\",…}" → value, with sorted labels. Has only the series that are part of the sums below.
  std::map<std::string, double> series;
  // `drafts` counts verification steps (for SGLang, its verify calls).
  double drafts = 0, drafted = 0, accepted = 0, generated = 0;
  // The sums by draft position, from 0. Only TensorRT-LLM has drafted_at; only specdec has reached_at and
  // overlap_sum_at.
  std::vector<double> accepted_at, drafted_at, reached_at, overlap_sum_at;
  std::map<std::string, ServedPair> pairs;  // by replica (its labels as text, "" if the page has only one)
  Few set_aside;                            // replicas left out: malformed or impossible numbers, with the reason
  Few begun;                                // set only by difference(): replicas that are not in the earlier scrape
  double unseen = 0;                        // set by difference(): what the replicas in `begun` had counted

  // Returns a sum of counters that grows with any work of the server.
  double counted() const;
  std::set<std::string> replicas() const;  // keys (as in `pairs`) of the replicas that have series
  void add(const Counters& other);         // adds the sums, not the series; both must be of the same engine
  // Removes the series of every replica for whose pair of models `is_own` returns false.
  void keep(const std::function<bool(const ServedPair&)>& is_own);
  // Adds the series of those replicas of `now`, a later scrape, that this scrape lacks. If this scrape then has too
  // many series, removes the series that are not in `now`.
  void adopt(const Counters& now);

 private:
  void restore_sums();
};

// Parses text exposition format 0.0.4. Three kinds of lines are skipped: lines of other series (even malformed ones),
// series whose model_name is not `model`, and series of draft positions above 64.
// A replica is left out (Counters::set_aside) if one of its lines is malformed, has a number outside of
// AcceptanceFigure::kCounter, names no draft position where the series needs one, or repeats another line's series. If
// `model` is "", and some replicas name no model while the others name several models, the replicas that name a model
// are left out. Beyond 20,000 series or 8 MiB of labels the remaining replicas are left out. Throws PageError if no
// replica is left. Also throws PageError for a malformed line whose labels cannot be read (with its number), a page
// without any sample, more than 100,000 lines, series of two engines, and series of several models if `model` is "" and
// all replicas name a model.
Counters parse_exposition(const std::string& text, const std::string& where, const std::string& model = "");

// Parses the answer of GET /api/v1/query, an instant vector of the raw counters, by the rules of parse_exposition().
Counters parse_query_answer(const std::string& text, const std::string& where, const std::string& model = "");

// Returns now − before for each series. A replica is identified by all labels except the position.
// * If any series of a replica fell, the replica was restarted, and all of its series count from zero.
// * A replica that is not in `before`, such as a pod under a new name, is left out and listed in `begun`.
// * A replica is left out (set_aside) if its counters rose faster than any server can count, or if it accepted more
// tokens than it drafted.
Counters difference(const Counters& now, const Counters& before);
Json to_json(const Counters& counters);
// Returns no series if the JSON is from another version or has numbers that no counter can have; counting then starts
// with the next scrape. Throws Error(kData) for a series that no page could have.
Counters counters_from_json(const Json& object, const std::string& where);

}  // namespace specdec::monitor
