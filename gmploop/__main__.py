from gmploop.cli import main

main()
