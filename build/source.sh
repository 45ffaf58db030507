# Sourced by scripts/build_backends.sh: where the source of llama.cpp comes from, and what proves it.
#   package  the pinned Python package that carries it, by the SHA-256 in requirements/llama.cpp.txt
#   git      a commit of a repository: git computes the id from the content
#   folder   a tree on this disk, as it is
# shellcheck shell=bash disable=SC2034,SC2154 # its variables are shared with that script

PINNED_COMMIT=0c1e57098bba43ac29e6e3b677cdceebdd22334f # of requirements/llama.cpp.txt
UPSTREAM=https://github.com/ggml-org/llama.cpp

# Sets source_kind, source_dir, commit (its name in builds) and source_origin (what tells it from others).
choose_source() {
  if [ -n "$told_source" ]; then
    source_kind=folder source_dir=$(cd "$told_source" && pwd) commit=local
    source_origin=$(cd "$source_dir" && find . -name .git -prune -o -type f -exec cksum {} + | LC_ALL=C sort | short_hash)
    return
  fi
  source_kind=package commit=$PINNED_COMMIT source_origin=$PINNED_COMMIT
  if [ -n "$told_commit" ] || [ -n "$repository" ]; then
    source_kind=git commit=${told_commit:-$PINNED_COMMIT}
    source_origin=$commit
  fi
  source_dir=$work/source/$commit
}

fetch_source() {
  [ "$source_kind" != folder ] || return 0
  [ -z "$dry_run" ] && [ -f "$source_dir/ggml/CMakeLists.txt" ] && return 0
  echo "fetching the source of llama.cpp $commit"
  run rm -rf "$source_dir.new"
  run mkdir -p "$source_dir.new"
  "fetch_by_$source_kind"
  run mv "$source_dir.new" "$source_dir"
}

fetch_by_package() {
  run mkdir -p "$work/package"
  if ! run "$python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
    --no-binary llama-cpp-python --dest "$work/package" --requirement "$HERE/requirements/llama.cpp.txt"; then
    command -v git >/dev/null || fail "pip could not fetch the source; --source DIR takes an unpacked llama.cpp"
    echo "pip could not fetch the source; asking git"
    fetch_by_git
    return
  fi
  # Without its .git: a submodule's, it points at a parent that the package does not carry.
  run tar -xzf "$work/package/llama_cpp_python-0.3.36.tar.gz" -C "$source_dir.new" --strip-components=3 \
    --exclude '*/.git' llama_cpp_python-0.3.36/vendor/llama.cpp || fail "the source cannot be unpacked into $work"
}

fetch_by_git() {
  local from=${repository:-$UPSTREAM} store=$work/git
  run git init --quiet --bare "$store"
  run git -C "$store" fetch --quiet --depth 1 "$from" "$commit" ||
    fail "git could not fetch $commit from $from; --source DIR takes an unpacked llama.cpp"
  # No archive: a repository's own attributes may leave files out of one.
  run git -C "$store" --work-tree="$source_dir.new" checkout --quiet --force "$commit" -- . ||
    fail "the source cannot be laid into $source_dir"
}
