"""A worker of a program that has started its workers itself."""

from cstorch.input.workers import main

if __name__ == "__main__":
    main()
